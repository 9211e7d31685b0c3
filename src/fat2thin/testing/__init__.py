"""A conformance kit for distributions: do density, sampler and cdf agree with each other?

`print(check_distribution(distribution, key))` shows one line per check.
"""

from fat2thin.testing.conformance import ConformanceCheck, ConformanceReport, check_distribution

__all__ = ["ConformanceCheck", "ConformanceReport", "check_distribution"]
