"""Figures, the HTML page to explore runs, and run status."""
