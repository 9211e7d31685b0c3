"""Experiments: the settings that papers published, with their sources."""
