"""Many runs: plans, sweeps, choosing by the log alone, and tables that compare."""
