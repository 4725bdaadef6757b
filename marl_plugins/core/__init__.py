"""The multi-agent part in pure Python and torch: no Ray, no upstream import."""
