"""Everything that knows an upstream: its command line, its seams, its CPU support. Light to import; no upstream import."""
