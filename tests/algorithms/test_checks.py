"""Checks of settings: invalid ones raise a clear error, every valid combination passes."""

import dataclasses
import math
from typing import get_type_hints

import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.algorithms.configs import (
    between,
    check_choices,
    choice,
    choices_of,
    layer_widths,
    only_with,
    whole,
)

COVERING = ("squashed_gaussian", "clipped_gaussian", "q_gaussian", "student_t", "beta")
REGRESSION = ("awac", "bc", "inac", "iql", "sql", "tawac", "xql")
"""Algorithms whose policy learns by the likelihood of logged actions."""
CLIMBING = ("rebrac", "spot", "td3_bc")
"""Algorithms whose policy maximises Q, and may be deterministic."""


def check(name, **settings):
    algorithm = algorithms.get(name)
    algorithm.check(algorithm.config(**settings))


def assert_error(message, name, **settings):
    with pytest.raises(ValueError, match=message):
        check(name, **settings)


@pytest.mark.parametrize("name", algorithms.names())
def test_defaults_pass(name):
    check(name)


PAIRS = [
    *((name, {"policy": family}) for name in REGRESSION for family in COVERING),
    *(
        (name, {"policy": "sparse_q_gaussian", "outside_support": rule})
        for name in REGRESSION
        for rule in ("replace", "project")
    ),
    *(
        (name, {"policy": family})
        for name in CLIMBING
        for family in (*COVERING, "sparse_q_gaussian", "deterministic")
    ),
    *(
        (name, {"policy": family})
        for name in ("edac", "sparse_reverse_kl")
        for family in (*COVERING, "sparse_q_gaussian")
    ),
    *(
        (name, {"behaviour": family})
        for name in ("inac", "sparse_reverse_kl")
        for family in COVERING
    ),
    *(("fttpo", {"proposal_family": family}) for family in COVERING),
]


@pytest.mark.parametrize(
    ("name", "settings"),
    [pytest.param(*pair, id="-".join([pair[0], *pair[1].values()])) for pair in PAIRS],
)
def test_every_valid_pair_of_algorithm_and_family_passes(name, settings):
    check(name, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "q_gaussian", "entropic_index": 1.0},
        {"policy": "q_gaussian", "entropic_index": 2.9},
        {"policy": "student_t", "degrees_of_freedom": 0.5},
        {"policy": "sparse_q_gaussian", "entropic_index": -20.0, "outside_support": "replace"},
        {"policy": "sparse_q_gaussian", "box": "clip", "outside_support": "project"},
        {"state_dependent_scale": False, "scale_low": 0.01, "scale_high": 1.0},
        {"actor_decay_steps": 10},
    ],
)
def test_settings_of_the_chosen_family_pass(settings):
    check("iql", **settings)


@pytest.mark.parametrize("name", (*REGRESSION, "sparse_reverse_kl"))
def test_a_deterministic_policy_is_an_error_if_the_loss_needs_a_density(name):
    reason = "policy='deterministic' cannot be used here: .*a deterministic policy has none"
    assert_error(reason, name, policy="deterministic")


@pytest.mark.parametrize("name", REGRESSION)
def test_regression_of_a_sparse_policy_needs_outside_support(name):
    assert_error(
        "needs outside_support='replace' or 'project': .*log density -inf",
        name,
        policy="sparse_q_gaussian",
    )


@pytest.mark.parametrize("name", [*CLIMBING, "sparse_reverse_kl"])
def test_outside_support_has_no_effect_without_regression(name):
    assert_error(
        "outside_support='replace' has no effect: the loss does not use the density of logged",
        name,
        policy="sparse_q_gaussian",
        outside_support="replace",
    )


@pytest.mark.parametrize("name", ("inac", "sparse_reverse_kl"))
@pytest.mark.parametrize("behaviour", ("sparse_q_gaussian", "deterministic"))
def test_the_behaviour_model_must_have_a_density_everywhere(name, behaviour):
    assert_error(
        f"behaviour must be one of 'squashed_gaussian', .*'beta', got '{behaviour}'",
        name,
        behaviour=behaviour,
    )


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ("entropic_index=2.0 has no effect: only 'q_gaussian'", {"entropic_index": 2.0}),
        (
            "entropic_index=0.0 has no effect: only 'q_gaussian'",
            {"policy": "clipped_gaussian", "entropic_index": 0.0},
        ),
        (
            "degrees_of_freedom=3.0 has no effect: only a 'student_t'",
            {"policy": "beta", "degrees_of_freedom": 3.0},
        ),
        (
            "degrees_of_freedom=3.0 has no effect: only a 'student_t'",
            {"policy": "q_gaussian", "degrees_of_freedom": 3.0},
        ),
        ("box='inside' has no effect: only a 'sparse_q_gaussian'", {"box": "inside"}),
        ("outside_support='project' has no effect: only a", {"outside_support": "project"}),
        (
            r"entropic_index must lie in \[1.0, 3.0\), got 0.5",
            {"policy": "q_gaussian", "entropic_index": 0.5},
        ),
        (
            r"entropic_index must lie in \(-inf, 1.0\), got 1.0",
            {
                "policy": "sparse_q_gaussian",
                "entropic_index": 1.0,
                "outside_support": "replace",
            },
        ),
        (
            r"degrees_of_freedom must lie in \(0.0, inf\), got 0.0",
            {"policy": "student_t", "degrees_of_freedom": 0.0},
        ),
        (
            "box must be one of 'inside', 'clip', got 'bounce'",
            {"policy": "sparse_q_gaussian", "outside_support": "replace", "box": "bounce"},
        ),
        (
            "outside_support must be one of 'replace', 'project', got 'drop'",
            {"policy": "sparse_q_gaussian", "outside_support": "drop"},
        ),
        ("policy must be one of 'squashed_gaussian', .*, got 'normal'", {"policy": "normal"}),
        (
            r"scale_low must lie in \(0.0, 0.5\), got 0.5",
            {"scale_low": 0.5, "scale_high": 0.5},
        ),
        (r"scale_high must lie in \(0.0, inf\), got inf", {"scale_high": math.inf}),
        ("actor_decay_steps must be a whole number of at least 1, got 0", {"actor_decay_steps": 0}),
        (r"learning_rate must lie in \(0.0, 1.0\), got 1.0", {"learning_rate": 1.0}),
        (r"adam_beta_2 must lie in \(0.0, 1.0\), got nan", {"adam_beta_2": math.nan}),
        (r"polyak_rate must lie in \(0.0, 1.0\], got 0.0", {"polyak_rate": 0.0}),
        (r"hidden must list at least one positive layer width, got \(\)", {"hidden": ()}),
        (r"hidden must list at least one positive layer width, got \(8, 0\)", {"hidden": (8, 0)}),
        (r"expectile must lie in \(0.0, 1.0\), got 1.0", {"expectile": 1.0}),
    ],
)
def test_settings_without_effect_or_out_of_range_are_errors(message, settings):
    assert_error(message, "iql", **settings)


@pytest.mark.parametrize("name", ["scale_low", "scale_high", "state_dependent_scale"])
def test_a_deterministic_policy_has_no_scale(name):
    value = False if name == "state_dependent_scale" else 0.5
    assert_error(f"{name}={value} has no effect: a deterministic policy has no scale", "spot",
            **{name: value})  # fmt: skip


@pytest.mark.parametrize(
    ("message", "name", "settings"),
    [
        ("supports only policy='q_gaussian' and .*got 'squashed_gaussian'", "tawac", {}),
        ("weight_index=0.5 has no effect: published=True uses", "fttpo", {"weight_index": 0.5}),
        ("supports only actor_loss='exact' and 'spot'", "fttpo", {"actor_loss": "greedy"}),
        ("supports only proposal_family='q_gaussian' and", "fttpo", {"proposal_family": "beta"}),
        ("value_clip=5.0 has no effect: published=True uses", "xql", {"value_clip": 5.0}),
        ("weight_index=0.5 has no effect: published=True uses", "tawac-ht", {"weight_index": 0.5}),
        ("needs outside_support='replace', got 'project'", "rar", {"outside_support": "project"}),
        ("weight_floor=0.1 has no effect: published", "sparse_reverse_kl", {"weight_floor": 0.1}),
    ],
)
def test_settings_that_published_overrides_are_errors(message, name, settings):
    assert_error(message, name, published=True, **settings)


@pytest.mark.parametrize(
    "name", ("fttpo", "fttpo-sg", "fttpo-spot", "tawac-ht", "rar", "xql", "sparse_reverse_kl")
)
def test_published_passes_with_default_settings(name):
    check(name, published=True)


@dataclasses.dataclass(frozen=True)
class Example:
    number: float = 0.5
    perhaps: float | None = None
    word: str | None = choice(None, ("a", "b"))
    other: str = choice("c", ("c", "d"))
    count: int = 1
    widths: tuple[int, ...] = (1,)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (0.5, True),
        (np.float32(0.5), True),
        (0, False),
        (1, True),
        (1.0001, False),
        (math.nan, False),
        (True, False),
        ("0.5", False),
        (None, False),
    ],
)
def test_between_accepts_only_numbers_in_the_interval(value, fits):
    """The interval is (0, 1]."""
    if fits:
        between(Example(number=value), "number", 0.0, 1.0, closed_high=True)
    else:
        with pytest.raises(ValueError, match=r"number must lie in \(0.0, 1.0\], got"):
            between(Example(number=value), "number", 0.0, 1.0, closed_high=True)


@pytest.mark.parametrize(
    ("value", "fits"), [(2, True), (np.int64(3), True), (1, False), (2.0, False), (True, False)]
)
def test_whole_accepts_only_integers(value, fits):
    if fits:
        whole(Example(count=value), "count", least=2)
    else:
        with pytest.raises(ValueError, match="count must be a whole number of at least 2, got"):
            whole(Example(count=value), "count", least=2)


def test_none_passes_only_if_the_type_of_the_field_allows_it():
    between(Example(), "perhaps", 0.0, 1.0)
    whole(Example(), "perhaps")
    check_choices(Example())
    with pytest.raises(ValueError, match="other must be one of 'c', 'd', got None"):
        check_choices(Example(other=None))
    with pytest.raises(ValueError, match="count must be"):
        whole(Example(count=None), "count")


def test_only_declared_choices_pass():
    assert choices_of(Example) == choices_of(Example()) == {"word": ("a", "b"), "other": ("c", "d")}
    check_choices(Example(word="b", other="d"))
    with pytest.raises(ValueError, match="word must be one of 'a', 'b', got 'c'"):
        check_choices(Example(word="c"))


@pytest.mark.parametrize("name", algorithms.names())
def test_every_string_setting_declares_its_choices(name):
    """A string setting without choices would accept anything."""
    config = algorithms.get(name).config
    words = {field: "?" for field, kind in get_type_hints(config).items() if kind in WORDS}
    assert {*choices_of(config)} == {*words}
    for field in words:
        assert_error(f"^{field} must be one of '", name, **{field: "?"})


WORDS = (str, str | None)


def test_layer_widths_are_positive_integers():
    layer_widths(Example(widths=(3, 4)), "widths")
    for wrong in ((), (0,), (3, -1), (2.5,)):
        with pytest.raises(ValueError, match="widths must list at least one positive layer"):
            layer_widths(Example(widths=wrong), "widths")


def test_only_with_accepts_settings_at_their_defaults():
    only_with(Example(), ("number", "word"), False, "a reason")
    only_with(Example(word="a"), ("number", "word"), True, "a reason")
    with pytest.raises(ValueError, match=r"word='a' has no effect: a reason\."):
        only_with(Example(word="a"), ("number", "word"), False, "a reason")
