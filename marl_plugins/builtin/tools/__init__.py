"""Tools that roles may use."""
