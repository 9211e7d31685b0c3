"""Reproduction of the FtTPO paper: presets, claims, figures and studies."""
