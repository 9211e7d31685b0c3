"""Run specifications, default settings and published settings."""
