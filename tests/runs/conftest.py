"""Tests here run on the tiny world."""

from tiny_world import tiny_world, without_type_checks  # noqa: F401
