"""Limits: their language, their intervals in float64, and their messages."""

import random
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.policies.limits import LimitFileError, LimitRules, Limits

NAMES = ["severity", "weight_kg"], ["dose", "rest"]
BOX = [0.0, -1.0], [1.0, 1.0]


def bound(text, **more):
    return Limits.parse({"x": text, **more}, *NAMES, *BOX)


@pytest.mark.parametrize(
    ("text", "severity", "last", "low", "high"),
    [
        ("dose <= 0.8 when severity > 2", 3.0, np.nan, 0.0, 0.8),
        ("dose <= 0.8 when severity > 2", 2.0, np.nan, 0.0, 1.0),
        ("0.02 * weight_kg >= dose", 0.0, np.nan, 0.0, 0.4),
        ("abs(dose - last_dose) <= 0.1", 0.0, 0.5, 0.4, 0.6),
        ("abs(dose - last_dose) <= 0.1", 0.0, np.nan, 0.0, 1.0),
        ("0.1 <= dose <= 0.5 when not (severity > 2 or weight_kg < 3)", 1.0, np.nan, 0.1, 0.5),
        ("-2 * dose <= -(weight_kg / 50)", 0.0, np.nan, 0.2, 1.0),
        ("dose == 0.3 when abs(severity - 1) < 0.5", 1.2, np.nan, 0.3, 0.3),
        ("dose <= 1 / 4", 0.0, np.nan, 0.0, 0.25),
        ("dose <= 2 / 4 * severity / 5", 2.0, np.nan, 0.0, 0.2),
        ("dose <= 0.1 * severity", 0.0, np.nan, 0.0, 0.0),
        ("abs(dose - last_dose) <= 0", 0.0, 0.7, 0.7, 0.7),
    ],
)
def test_interval_is_what_the_text_says(text, severity, last, low, high):
    found = bound(text).interval(jnp.array([severity, 20.0]), jnp.array([last, 0.0]))
    np.testing.assert_allclose([found.low[0], found.high[0]], [low, high], rtol=2e-6)
    assert not found.conflict and not found.forbidden


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dose <= severty", "character 9.*did you mean 'severity'"),
        ("dose + rest <= 1", "character 1.*couples several actions"),
        ("dose <= severity * weight_kg", "character 18.*two columns cannot be multiplied"),
        ("dose <=", "character 8.*found the end"),
        ("dose <= 1 when rest > 0", "character 16.*state alone"),
        ("dose <= __import__('os')", "character 20.*not part of the language"),
        ("abs(dose) >= 1", "one interval"),
        ("severity > 2", "must bound an action"),
        ("dose <= 1e999", "too large"),
        ("dose <= 1e39", "character 9.*too large"),
        ("dose <= 1e30 * severity * 1e30", "too large"),
        ("dose <= 0.1 / 0", "character 15.*the divisor is 0"),
        ("dose <= 1 / severity", "only a constant can be divided by"),
        ("dose <= 0.\N{ARABIC-INDIC DIGIT THREE}", "not part of the language"),
        ("(" * 60 + "dose" + ")" * 60 + " <= 1", "more than 50 brackets"),
    ],
)
def test_wrong_limits_are_refused_with_their_place(text, words):
    with pytest.raises(LimitFileError, match=words):
        bound(text)


class Texts:
    """Writes random limits, whose meaning Python reads in the same way."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.columns = ["severity", "`weight kg`", "rate", "last_dose"]

    def one_of(self, *texts):
        return self.draw.choice(texts)

    def number(self, depth=0):
        # Halves and quarters, which every type holds exactly.
        plain = self.one_of("0.5", "1", "2.", ".25", "3e0", "1.5E+0")
        if depth > 2:
            return plain
        deeper = self.number(depth + 1)
        return self.one_of(plain, plain, f"-{deeper}", f"({deeper})", f"{plain} * {deeper}",
                           f"{deeper} / 2", f"{plain} / -(1 + 1)")  # fmt: skip

    def sum(self, depth=0):
        if depth > 2:
            return self.one_of(*self.columns)
        inner = self.sum(depth + 1)
        return self.one_of(
            self.one_of(*self.columns), self.number(2), f"-{inner}", f"({inner})",
            f"{self.number(1)} * ({inner})", f"({inner}) / 4 * 2",
            f"{inner} + {self.sum(depth + 1)}", f"{inner} - {self.sum(depth + 1)}",
        )  # fmt: skip

    def sign(self):
        return self.one_of("<", "<=", ">", ">=")

    def condition(self, depth=0):
        plain = self.one_of(
            f"{self.one_of(*self.columns)} {self.sign()} {self.sum()}",
            f"abs({self.one_of(*self.columns)} - {self.sum()}) {self.sign()} 0.75",
            f"-1 < {self.one_of(*self.columns)} <= {self.sum()}",
        )
        if depth > 1:
            return plain
        inner, other = self.condition(depth + 1), self.condition(depth + 1)
        return self.one_of(plain, f"not {inner}", f"({inner})", f"{inner} and {other}",
                           f"{inner} or {other}", f"not ({inner} or {other})")  # fmt: skip

    def limit(self):
        factor = self.one_of("", "2 * ", "-", "-4 * ", "0.5 * ")
        bounds = self.one_of(
            f"{factor}dose {self.sign()} {self.sum()}", f"{self.sum()} {self.sign()} {factor}dose",
            f"0.25 < dose <= {self.sum()}", f"abs(dose - {self.sum()}) <= 0.5",
            f"{factor}dose - {self.sum()} {self.sign()} {self.sum()}",
        )  # fmt: skip
        return bounds + (f" when {self.condition()}" if self.draw.random() < 0.7 else "")


def python_reads(text):
    """Return a function that says whether a limit allows a dose in a state, in exact fractions."""
    text = text.replace("`weight kg`", "weight").replace("2.", "2.0")
    text = re.sub(r"(?<![\w.])(\d*\.?\d+(?:[eE][+-]?\d+)?)", r"Fraction('\1')", text)
    bounds, _, condition = text.partition(" when ")
    known = {"Fraction": Fraction, "abs": abs}
    applies, keeps = (compile(part or "True", text, "eval") for part in (condition, bounds))

    def allows(state, dose):
        named = {**known, **state, "dose": Fraction(float(dose))}
        return not eval(applies, named) or eval(keeps, named)

    return allows


@pytest.mark.parametrize("seed", range(3))
def test_limits_mean_what_python_reads_in_them(seed):
    """Precedence, unary minus, brackets and chains, on random texts in exact arithmetic."""
    texts, draw, outside = Texts(seed), np.random.default_rng(seed), 0
    # Shifted, so that no state lies on a threshold, where rounding decides.
    shift = [1 / 3, 1 / 7, 1 / 11, 1 / 13]
    states = np.float32(draw.integers(-40, 40, (30, 4)) / 16 + shift)
    names = ("severity", "weight", "rate", "last_dose")
    fractions = [dict(zip(names, map(Fraction, row), strict=True)) for row in states.tolist()]
    for _ in range(25):
        text, columns = texts.limit(), ["severity", "weight kg", "rate"]
        try:
            limits = Limits.parse({"x": text}, columns, ["dose"], [-4.0], [9.0])
        except LimitFileError as error:
            # Random sums may cancel.
            assert re.search("must (name a column|bound an action)", str(error)), text
            continue
        allows = python_reads(text)
        found = limits.interval(jnp.asarray(states[:, :3]), jnp.asarray(states[:, 3:]))
        low, high = (np.asarray(end[:, 0], np.float64) for end in (found.low, found.high))
        grid = np.linspace(-4, 9, 40)
        for row, state in enumerate(fractions):
            others = grid
            if found.acts[row]:
                inside = np.linspace(low[row], high[row], 5)
                assert all(allows(state, dose) for dose in inside), (text, row)
                others = grid[(grid < low[row] - 1e-4) | (grid > high[row] + 1e-4)]
            assert not any(allows(state, dose) for dose in others), (text, row)
            outside += len(others)
    assert outside > 1000


def test_a_million_intervals_hold_in_float64():
    """An end computed in float32 is never beyond the exact one, evaluated in float64."""
    rules = {
        "weight": "dose <= 0.013 * weight_kg - 0.07 * severity + 0.1",
        "rate": "abs(dose - last_dose) <= 0.1",
        "floor": "dose >= 0.003 * weight_kg when severity > 0.7",
    }
    limits = Limits.parse(rules, *NAMES, *BOX)
    key = jax.random.split(jax.random.key(0), 3)
    count = 10**6
    severity = jax.random.uniform(key[0], (count,), maxval=3.0)
    weight = jax.random.uniform(key[1], (count,), maxval=120.0)
    last = jax.random.uniform(key[2], (count, 2))
    found = jax.jit(limits.interval)(jnp.stack([severity, weight], axis=-1), last)
    s, w, before = (np.asarray(part, np.float64) for part in (severity, weight, last[:, 0]))
    low, high = (np.asarray(end[:, 0], np.float64) for end in (found.low, found.high))
    acts = np.asarray(found.acts)
    assert 0.1 < acts.mean() < 0.9
    assert (high <= 0.013 * w - 0.07 * s + 0.1)[acts].all()
    assert (high <= before + 0.1)[acts].all() and (low >= before - 0.1)[acts].all()
    assert (low >= 0.003 * w)[acts & (s > 0.7)].all()
    exact_low = np.maximum.reduce([0 * s, before - 0.1, np.where(s > 0.7, 0.003 * w, 0.0)])
    exact_high = np.minimum.reduce([0 * s + 1, before + 0.1, 0.013 * w - 0.07 * s + 0.1])
    assert (acts == (exact_low <= exact_high))[np.abs(exact_low - exact_high) > 1e-5].all()
    np.testing.assert_allclose(low[acts], exact_low[acts], atol=3e-6)


@pytest.mark.parametrize("number", [0.1, 0.3, 0.7, 1.1, 2.5, 70.1])
def test_a_column_with_the_number_of_a_condition_is_equal_to_it(number):
    """A table says 0.7, and no float32 is 0.7: the number and the column are rounded alike."""
    state = jnp.array([np.float32(number), 0.0])
    for sign, holds in (("<=", True), (">=", True), ("==", True), ("<", False), (">", False)):
        for text in (f"severity {sign} {number}", f"-2 * severity {sign} -{number} * 2"):
            found = bound(f"dose <= 0.2 when {text}").interval(state)
            assert bool(found.high[0] < 0.5) == holds, text
            opposite = bound(f"dose <= 0.2 when not {text}").interval(state)
            assert bool(opposite.high[0] < 0.5) != holds, text


def test_strict_limits_at_zero_exclude_it():
    """The numbers next to 0 are rounded to 0 by compiled programs."""
    for text in ("rest < 0", "rest > 0", "rest >= 1e-46", "rest <= -1e-46"):
        found = jax.jit(bound(text).interval)(jnp.array([1.0, 1.0]))
        assert not (found.low[1] <= 0.0 <= found.high[1]) and found.acts, text
    assert not bound("dose < 0").interval(jnp.array([1.0, 1.0])).acts


def test_conflicts_and_forbidden_states_name_their_limits():
    limits = bound(
        "dose <= 0.2", y="dose >= 0.3 when severity > 2", z="no action when severity > 5"
    )
    found = limits.interval(jnp.array([[1.0, 0.0], [3.0, 0.0], [6.0, 0.0]]))
    assert found.conflict.tolist() == [False, True, True]
    assert found.forbidden.tolist() == [False, False, True]
    second = jax.tree.map(lambda part: part[1], found)
    assert limits.reasons(second) == ("x: dose <= 0.2", "y: dose >= 0.3 when severity > 2")


def test_forbidden_states_are_not_a_reduction_of_constants():
    """XLA would fold one over all states, which takes seconds and prints warnings."""
    limits = bound("dose <= 0.2", y="no action when severity > 2", z="dose >= 0.1")
    program = jax.jit(lambda states: limits.interval(states).forbidden)
    assert "stablehlo.reduce" not in program.lower(jnp.ones((5, 2))).as_text()


def test_files_are_read_and_errors_name_line_and_column(tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text('[limits]\ncap = "dose <= 0.8"\n\n[limits.fallback]\ndose = 0.0\nrest = 0\n')
    limits = LimitRules.from_toml(file).bind(*NAMES, *BOX)
    assert limits.names == ("cap",) and limits.fallback == (0.0, 0.0) and limits.always_act
    assert LimitRules.from_json(limits.rules.to_json()) == limits.rules
    file.write_text('[limits]\nok = "dose <= 1"\ncap = "dose <= severty"\n')
    with pytest.raises(LimitFileError, match=r"limits.toml, line 3, column 16: limit 'cap'"):
        LimitRules.from_toml(file).bind(*NAMES, *BOX)
    file.write_text('[limits]\ncap = "dose <= 0.8"\n\n[limits.fallback]\ndose = 2\nrest = 0\n')
    with pytest.raises(LimitFileError, match=r"limits.toml, line 4: the fallback dose = 2 leaves"):
        LimitRules.from_toml(file).bind(*NAMES, *BOX)
    file.write_text('[limits]\ncap = "dose <= 0.8"\n', encoding="utf-8-sig")  # of Windows
    assert LimitRules.from_toml(file).rules == (("cap", "dose <= 0.8"),)
    file.write_text("cap = 3\n")
    with pytest.raises(LimitFileError, match=r"no table \[limits\]"):
        LimitRules.from_toml(file)
