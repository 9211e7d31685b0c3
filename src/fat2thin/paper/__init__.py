"""Everything about the paper: presets, claims, figures and studies."""
