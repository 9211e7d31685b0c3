"""Conformance kit for distributions: checks that density, sampler, cdf and moments agree.

`print(check_distribution(distribution, key))` shows one line per check.
"""

from fat2thin.testing.conformance import ConformanceCheck, ConformanceReport, check_distribution

__all__ = ["ConformanceCheck", "ConformanceReport", "check_distribution"]
