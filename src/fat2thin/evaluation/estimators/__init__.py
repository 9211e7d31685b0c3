"""Estimators of the value of a policy from a log, as pure functions of padded arrays.

They open no files and know no policies: `vmap` and `scan` run them over many logs in one program.
`evaluation.value` prepares the arrays and decides which estimate is printed.
"""
