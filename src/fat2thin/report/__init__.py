"""Figures and pages. They read what others computed, and train nothing."""
