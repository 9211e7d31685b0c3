"""A conformance kit for distributions: do density, sampler and cdf agree with each other?

`print(check_distribution(distribution, key))` shows one line per check.
"""

from fat2thin.testing.conformance import ConformanceCheck as Check
from fat2thin.testing.conformance import ConformanceReport as Report
from fat2thin.testing.conformance import check_distribution

__all__ = ["Check", "Report", "check_distribution"]
