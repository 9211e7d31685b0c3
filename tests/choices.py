"""Every setting of an algorithm that has a list of choices, for tests that walk all of them."""

from typing import get_args, get_type_hints

from fat2thin import algorithms
from fat2thin.algorithms.configs import choices_of


def choices(algorithm):
    """Each setting that is one of several words, or on or off, with each of its values."""
    config = algorithms.get(algorithm).config
    kinds = get_type_hints(config)
    values = {name: [False, True] for name, kind in kinds.items() if kind is bool}
    for name, words in choices_of(config).items():
        values[name] = [*words, *([None] if type(None) in get_args(kinds[name]) else [])]
    return [{name: value} for name in values for value in values[name]]
