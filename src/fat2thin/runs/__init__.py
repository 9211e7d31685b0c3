"""The run folder: identity, checkpoints, lock, status, result, verification."""
