"""The package of what a run leaves for people and for other commands: records, report, curves,
console."""
