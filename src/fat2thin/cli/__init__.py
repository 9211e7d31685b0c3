"""The command line, `fat2thin`."""
