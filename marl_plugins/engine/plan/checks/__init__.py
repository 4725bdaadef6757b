"""Checks of a plan, one idea a module: each returns the problems that it finds, and changes
nothing."""
