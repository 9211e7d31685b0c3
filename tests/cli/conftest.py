"""Fixtures: the tests of the command line run on the tiny world."""

from tiny_world import tiny_world, without_type_checks  # noqa: F401
