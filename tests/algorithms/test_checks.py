"""What settings are refused, and in which words; every pair that has a meaning passes."""

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
CLIMBING = ("spot", "td3_bc")
"""Algorithms whose policy goes uphill on Q, and may be deterministic."""


def check(name, **settings):
    algorithm = algorithms.get(name)
    algorithm.check(algorithm.config(**settings))


def refused(message, name, **settings):
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
    *(("sparse_reverse_kl", {"policy": family}) for family in (*COVERING, "sparse_q_gaussian")),
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
def test_every_pair_with_a_meaning_passes(name, settings):
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
def test_settings_of_a_family_pass_with_it(settings):
    check("iql", **settings)


@pytest.mark.parametrize("name", (*REGRESSION, "sparse_reverse_kl"))
def test_a_density_is_not_asked_of_a_deterministic_policy(name):
    reason = "policy='deterministic' has no meaning here: .*a deterministic policy has none"
    refused(reason, name, policy="deterministic")


@pytest.mark.parametrize("name", REGRESSION)
def test_a_sparse_policy_needs_a_rule_for_actions_outside(name):
    refused(
        "needs outside_support='replace' or 'project': .*log density -inf",
        name,
        policy="sparse_q_gaussian",
    )


@pytest.mark.parametrize("name", [*CLIMBING, "sparse_reverse_kl"])
def test_no_rule_for_actions_outside_where_none_can_be(name):
    refused(
        "outside_support='replace' has no effect: the loss asks for no density of logged actions",
        name,
        policy="sparse_q_gaussian",
        outside_support="replace",
    )


@pytest.mark.parametrize("name", ("inac", "sparse_reverse_kl"))
@pytest.mark.parametrize("behaviour", ("sparse_q_gaussian", "deterministic"))
def test_a_model_of_the_log_covers_it(name, behaviour):
    refused(
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
        (r"hidden must be positive layer widths, got \(\)", {"hidden": ()}),
        (r"hidden must be positive layer widths, got \(8, 0\)", {"hidden": (8, 0)}),
        (r"expectile must lie in \(0.0, 1.0\), got 1.0", {"expectile": 1.0}),
    ],
)
def test_settings_without_effect_or_out_of_range_are_refused(message, settings):
    refused(message, "iql", **settings)


@pytest.mark.parametrize("name", ["scale_low", "scale_high", "state_dependent_scale"])
def test_a_deterministic_policy_has_no_scale(name):
    value = False if name == "state_dependent_scale" else 0.5
    refused(f"{name}={value} has no effect: a deterministic policy has no scale", "spot",
            **{name: value})  # fmt: skip


@pytest.mark.parametrize(
    ("message", "name", "settings"),
    [
        ("the authors' 'squashed_gaussian' policy needs no form of its own", "tawac", {}),
        ("weight_index=0.5 has no effect: published=True has", "fttpo", {"weight_index": 0.5}),
        ("knows actor_loss='exact' and 'spot' alone", "fttpo", {"actor_loss": "greedy"}),
        ("knows proposal_family='q_gaussian' and", "fttpo", {"proposal_family": "beta"}),
        ("value_clip=5.0 has no effect: published=True has", "xql", {"value_clip": 5.0}),
        ("weight_index=0.5 has no effect: published=True has", "tawac-ht", {"weight_index": 0.5}),
        ("replaces actions: use outside_support='replace'", "rar", {"outside_support": "project"}),
        ("weight_floor=0.1 has no effect: published", "sparse_reverse_kl", {"weight_floor": 0.1}),
    ],
)
def test_the_authors_form_leaves_nothing_to_choose_that_it_fixes(message, name, settings):
    refused(message, name, published=True, **settings)


@pytest.mark.parametrize(
    "name", ("fttpo", "fttpo-sg", "fttpo-spot", "tawac-ht", "rar", "xql", "sparse_reverse_kl")
)
def test_the_authors_form_passes_as_it_is(name):
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
def test_a_number_lies_in_its_interval(value, fits):
    """Here (0, 1]."""
    if fits:
        between(Example(number=value), "number", 0.0, 1.0, closed_high=True)
    else:
        with pytest.raises(ValueError, match=r"number must lie in \(0.0, 1.0\], got"):
            between(Example(number=value), "number", 0.0, 1.0, closed_high=True)


@pytest.mark.parametrize(
    ("value", "fits"), [(2, True), (np.int64(3), True), (1, False), (2.0, False), (True, False)]
)
def test_a_count_is_whole(value, fits):
    if fits:
        whole(Example(count=value), "count", least=2)
    else:
        with pytest.raises(ValueError, match="count must be a whole number of at least 2, got"):
            whole(Example(count=value), "count", least=2)


def test_none_passes_only_where_it_is_the_default():
    between(Example(), "perhaps", 0.0, 1.0)
    whole(Example(), "perhaps")
    check_choices(Example())
    with pytest.raises(ValueError, match="other must be one of 'c', 'd', got None"):
        check_choices(Example(other=None))
    with pytest.raises(ValueError, match="count must be"):
        whole(Example(count=None), "count")


def test_a_word_is_one_of_its_choices():
    assert choices_of(Example) == choices_of(Example()) == {"word": ("a", "b"), "other": ("c", "d")}
    check_choices(Example(word="b", other="d"))
    with pytest.raises(ValueError, match="word must be one of 'a', 'b', got 'c'"):
        check_choices(Example(word="c"))


@pytest.mark.parametrize("name", algorithms.names())
def test_every_word_of_a_config_is_a_choice_that_is_checked(name):
    """A word without declared choices would be taken whatever it is, and no test would try it."""
    config = algorithms.get(name).config
    words = {field: "?" for field, kind in get_type_hints(config).items() if kind in WORDS}
    assert {*choices_of(config)} == {*words}
    for field in words:
        refused(f"^{field} must be one of '", name, **{field: "?"})


WORDS = (str, str | None)


def test_widths_are_positive_whole_numbers():
    layer_widths(Example(widths=(3, 4)), "widths")
    for wrong in ((), (0,), (3, -1), (2.5,)):
        with pytest.raises(ValueError, match="widths must be positive layer widths, got"):
            layer_widths(Example(widths=wrong), "widths")


def test_a_setting_without_effect_may_stay_at_its_default():
    only_with(Example(), ("number", "word"), False, "of no use")
    only_with(Example(word="a"), ("number", "word"), True, "of no use")
    with pytest.raises(ValueError, match=r"word='a' has no effect: of no use\."):
        only_with(Example(word="a"), ("number", "word"), False, "of no use")
