"""Experiments of many runs: plans, sweeps, offline selection, and comparison tables."""
