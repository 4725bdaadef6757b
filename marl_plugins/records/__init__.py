"""What a run leaves for people and for other commands: records, report, curves, console."""
