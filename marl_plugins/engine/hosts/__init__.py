"""Everything specific to an upstream: its command line, seams and CPU support. Light to import;
imports no upstream."""
