"""Policies: neural networks, distribution families and the action box."""

from fat2thin.policies.policy import Policy, in_half_ranges

__all__ = ["Policy", "in_half_ranges"]
