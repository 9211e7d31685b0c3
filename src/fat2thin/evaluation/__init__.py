"""Evaluation of policies: returns, their statistics, held-out signals and tables."""
