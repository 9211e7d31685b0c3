"""Tasks to learn and to be judged on; only `gym` needs Gymnasium, and nothing here imports it."""
