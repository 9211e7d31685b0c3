"""A conformance kit for distributions: is the density, the sampler, the cdf what it says it is?

`print(check_distribution(distribution, key))` shows a line a check.
"""

from fat2thin.testing.conformance import check_distribution
from fat2thin.testing.report import Check, Report

__all__ = ["Check", "Report", "check_distribution"]
