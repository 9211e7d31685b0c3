"""The settings of an algorithm that have a fixed set of values, for tests that try them all."""

from typing import get_args, get_type_hints

from fat2thin import algorithms
from fat2thin.algorithms.configs import choices_of


def choices(algorithm):
    """Return one dictionary per value of each setting that is a choice or a boolean."""
    config = algorithms.get(algorithm).config
    kinds = get_type_hints(config)
    values = {name: [False, True] for name, kind in kinds.items() if kind is bool}
    for name, words in choices_of(config).items():
        values[name] = [*words, *([None] if type(None) in get_args(kinds[name]) else [])]
    return [{name: value} for name in values for value in values[name]]
