"""Readers of data files, one module per format."""
