"""Policies outside JAX: NumPy, ONNX, C and StableHLO."""
