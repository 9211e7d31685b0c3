"""Certificates where numbers overflow, underflow or cancel, and certificates that were forged."""

import dataclasses
import itertools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import random_policies as made
from fat2thin import safety
from fat2thin.columns import Column, Transform
from fat2thin.policies.families import Sparse, Squashed
from fat2thin.policies.limits import Limits
from fat2thin.policies.networks import PolicyNetwork, with_precision
from fat2thin.policies.policy import unit_policy
from fat2thin.safety import checker
from fat2thin.safety.arithmetic import ARITHMETICS
from fat2thin.safety.propagation import Affine, Inputs, Trunk

COLUMNS = ("x", "y")


def constant(
    centre=0.0, low=0.0, high=1.0, limits=None, seen=(), acted=(), mean=(0.0, 0.0),
    scale=(1.0, 1.0), family=None,
):  # fmt: skip
    """A policy with the same band, of half-width 0.05 half-ranges, in all states."""
    network = jax.tree.map(jnp.zeros_like, PolicyNetwork(jax.random.key(0), 2, 1, (4,)))
    network = eqx.tree_at(
        lambda tree: (tree.centre.bias, tree.log_scale.bias),
        network,
        (jnp.full(1, centre), jnp.full(1, np.log(0.05))),
    )
    policy = unit_policy(network, family or Sparse(), (0.01, 0.5)).in_box((low,), (high,))
    parts = (jnp.asarray(part, jnp.float32) for part in (mean, scale))
    pairs = zip(COLUMNS, seen or (None,) * 2, strict=True)
    columns = tuple(Column(name, "", one) for name, one in pairs)
    actions = (Column("dose", "", *acted),)
    policy = dataclasses.replace(
        policy.on_raw(*parts, seen, acted), observation_columns=columns, action_columns=actions
    )
    if limits is None:
        return policy
    return policy.with_limits(Limits.parse(limits, columns, actions, [low], [high]))


def written(tmp_path, found):
    path = tmp_path / "certificate.json"
    safety.save_certificate(found, path)
    return path


def read(path):
    arrays = safetensors.numpy.load(path.with_name(path.name + ".proof").read_bytes())
    return json.loads(path.read_text()), {name: array.copy() for name, array in arrays.items()}


FALLBACK = {"fallback": {"dose": 0.9}}


@pytest.mark.parametrize(
    ("limits", "box", "state"),
    [
        # float32 overflows in the end: nothing is allowed, so the fallback counts.
        ({"one": "dose <= 1e38 * x", **FALLBACK}, {"x": (100, 1000), "y": 0}, (200, 0)),
        ({"one": "dose <= 1e38 * x - 1e38 * y", **FALLBACK}, {"x": (9, 10), "y": 5}, (9.5, 5)),
        # float32 overflows in the condition: inf - inf is neither above 0 nor below.
        ({"one": "dose >= 0.8 when 1e38 * x > 1e38 * y"}, {"x": (20, 21), "y": 9}, (20, 9)),
        ({"one": "no action when 1e38 * x > 1e38 * y", **FALLBACK}, {"x": (7, 9), "y": 5}, (8, 5)),
        # A subnormal fallback may become 0.
        ({"one": "no action when x > 0", "fallback": {"dose": 1e-40}}, {"x": 1, "y": 0}, (1, 0)),
    ],
)  # fmt: skip
def test_limits_that_overflow_or_underflow_are_within_the_bounds(tmp_path, limits, box, state):
    policy = constant(limits=limits)
    found = safety.certify(policy, box, seconds=0.1)
    low, high = policy.support(np.asarray(state, np.float32))
    assert found.low[0] <= float(low[0]) <= float(high[0]) <= found.high[0]
    path = written(tmp_path, found)
    values, arrays = read(path)
    assert checker.check(values, arrays) >= 2
    # The checker does not prove bounds that this action breaks.
    ends = {"low": float(low[0]) + 1e-6, "high": float(high[0]) - 1e-6}
    values["bounds"] = [{**bound, "bound": ends[bound["side"]]} for bound in values["bounds"]]
    with pytest.raises(checker.NotProven):
        checker.check(values, arrays)


@pytest.mark.parametrize(
    ("low", "offset"), [(-0.0999999, 0.1), (-0.09999, 0.1), (-2.9999, 3.000000089)]
)
def test_an_offset_that_nearly_cancels_the_action_is_rounded_within_the_bounds(low, offset):
    for centre in (-1.5, 0.0, 1.0):
        policy = constant(centre, low, 1.0, acted=(Transform("log", offset),))
        found = safety.certify(policy, {"x": 0, "y": 0}, seconds=0.1)
        ends = [float(end[0]) for end in policy.support(np.zeros(2, np.float32))]
        assert found.low[0] <= ends[0] <= ends[1] <= found.high[0]


def test_a_subnormal_action_box_is_flushed_within_the_bounds():
    policy = constant(0.1, 0.0, 1e-39)
    found = safety.certify(policy, {"x": 0, "y": 0}, seconds=0.1)
    low, high = policy.support(np.zeros(2, np.float32))
    assert found.low[0] <= float(low[0]) <= float(high[0]) <= found.high[0]


BF16 = with_precision(constant(), "bfloat16")
STATE = {"x": (0.0, 1.0), "y": 0.0}


@pytest.mark.parametrize(
    ("policy", "box", "words"),
    [
        (constant(0.1, -2e38, 2e38), STATE, "may overflow: the action box of 'dose' is"),
        (constant(high=100.0, acted=(Transform("scale", 9e37),)), STATE, "'dose' is too large"),
        (constant(acted=(Transform("scale", 1e-40),)), STATE, "round scale 1e-40 of the action"),
        (constant(low=-0.09999999, acted=(Transform("log", 0.1),)), STATE, r"beyond -0\.1, where"),
        (
            constant(seen=(Transform("scale", 9e37), None), scale=(1e38, 1.0)),
            {"x": (1, 100), "y": 0}, "may overflow: column 'x' is too large",
        ),
        (constant(mean=(-3e37, 0.0), scale=(1e37, 1.0)), {"x": (1e37, 2e37), "y": 0}, "overflow"),
        (constant(seen=(Transform("log", 0.5), None)), {"x": (-0.5, 1), "y": 0}, "reaches to -0.5"),
        (BF16, STATE, "computes in bfloat16, not in float32"),
    ],
)  # fmt: skip
def test_nothing_is_certified_where_the_policy_may_not_compute_numbers(policy, box, words):
    with pytest.raises(safety.NotCertified, match=words):
        safety.certify(policy, box, seconds=0.1)


def test_a_box_beyond_float32_names_its_column():
    with pytest.raises(safety.BoxError, match="column 'y' reaches beyond the numbers of float32"):
        safety.certify(constant(family=Squashed()), {"x": 0, "y": (0, 1e39)}, seconds=0.1)


def forged(tmp_path, change, case=None):
    policy = made.policy_of(3, **(case or {"rules": "linear", "sharpness": 1.0}))
    box = made.box_of(np.random.default_rng(1), policy, 0.5)
    path = written(tmp_path, safety.certify(policy, box, seconds=1.0, gap=0.02))
    values, arrays = read(path)
    assert checker.check(values, arrays)
    change(values, arrays)
    proof = path.with_name(path.name + ".proof")
    proof.write_bytes(safetensors.numpy.save(arrays))
    stamp = safety.certificate_file.files.stamp(proof.read_bytes())
    values["proof"] |= stamp
    values["sha256"]["box"] = safety.Box.from_json(values["box"]).sha256
    path.write_text(json.dumps(values))
    return safety.verify_certificate(path)


def swapped_columns(values, arrays):
    names = values["box"]["names"]
    names[0], names[1] = names[1], names[0]


def reversed_range(values, arrays):
    low, high = values["box"]["low"], values["box"]["high"]
    low[0], high[0] = high[0] + 1.0, low[0]


def layer_norm(values, arrays):
    arrays["member0.trunk0.norm_scale"] = np.ones(8, np.float32)


def double_weights(values, arrays):
    arrays["member0.centre.weight"] = arrays["member0.centre.weight"].astype(np.float64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swapped_columns, "the policy has others"), (reversed_range, "the box has the range"),
        (layer_norm, "without layer norm"), (double_weights, "weights in float32"),
    ],
)  # fmt: skip
def test_a_forged_certificate_fails_by_its_form(tmp_path, change, words):
    found = str(forged(tmp_path, change))
    assert "FAILED" in found and words in found, found


def test_slopes_outside_0_and_1_prove_nothing_more(tmp_path):
    policy = made.policy_of(4, hidden=(16, 16))
    box = made.box_of(np.random.default_rng(2), policy, 0.3)
    path = written(tmp_path, safety.certify(policy, box, seconds=0.0))
    values, arrays = read(path)
    names = [name for name in arrays if ".slopes." in name]
    assert names and checker.check(values, arrays)

    def least(fill):
        """The closest bounds that these slopes prove."""
        kept = {name: np.full(arrays[name].shape, fill) if name in names else array
                for name, array in arrays.items()}  # fmt: skip
        ends = [checker._End(values, kept, bound) for bound in values["bounds"]]
        return [end.bounds(*end.leaves(), np.arange(len(end.leaves()[0]))).max() for end in ends]

    assert least(np.uint8(0)) != least(np.uint8(255))
    np.testing.assert_array_equal(least(np.float32(-500.0)), least(np.uint8(0)))
    np.testing.assert_array_equal(least(np.float32(900.0)), least(np.uint8(255)))


def test_leaves_without_slopes_of_their_own_are_few_bytes_and_still_proven(tmp_path):
    policy = made.policy_of(4, hidden=(16, 16))
    box = made.box_of(np.random.default_rng(2), policy, 1.0)
    found = safety.certify(policy, box, seconds=2.0, gap=0.0)
    values, arrays = read(written(tmp_path, found))
    leaves = sum((arrays[name] < 0).sum() for name in arrays if name.endswith(".column"))
    own = sum(len(arrays[name]) for name in arrays if name.endswith(".own"))
    assert 0 < own < leaves
    assert checker.check(values, arrays) == leaves


@pytest.mark.parametrize("hidden", [(5, 9), (9, 5, 7), (12,)])
def test_bounds_of_rectifiers_are_those_of_the_definition(hidden):
    rng, of = np.random.default_rng(0), ARITHMETICS["float64"]
    sizes = (3, *hidden)
    layers = [
        Affine.of(rng.normal(size=(two, one)), rng.normal(size=two))
        for one, two in itertools.pairwise(sizes)
    ]
    centre, radius = rng.normal(size=(6, 3)), rng.uniform(0.1, 1.0, (6, 3))
    found = Trunk(layers, of).rectifiers(Inputs(centre, radius))
    for box in range(6):
        for place, layer in enumerate(layers):
            for neuron, row in enumerate(layer.weight):
                for sign in (-1.0, 1.0):
                    # One row, backwards through one line per neuron.
                    total, coefficients = sign * layer.bias[neuron], sign * row
                    for number in reversed(range(place)):
                        before, lines = layers[number], found[number]
                        low, high = lines.low[box], lines.high[box]
                        steep = np.where(
                            low >= 0, 1.0, np.where(high <= 0, 0.0, high / (high - low))
                        )
                        flat = np.where(low >= 0, 1.0, (high > -low) & (high > 0))
                        up = coefficients > 0
                        lift = np.where((low < 0) & (high > 0), -low * steep, 0.0)
                        total += (coefficients * lift)[up].sum()
                        coefficients = coefficients * np.where(up, steep, flat)
                        total += coefficients @ before.bias
                        coefficients = coefficients @ before.weight
                    total += coefficients @ centre[box] + np.abs(coefficients) @ radius[box]
                    if place:  # interval arithmetic may be closer
                        low, high = (np.maximum(end[box], 0) for end in found[place - 1][:2])
                        ends = np.where(sign * row > 0, sign * row * high, sign * row * low)
                        total = min(total, ends.sum() + sign * layer.bias[neuron])
                    end = (found[place].high if sign > 0 else -found[place].low)[box, neuron]
                    assert end == pytest.approx(total, abs=1e-9), (place, neuron, sign)
                    assert end >= total - 1e-13


@pytest.mark.parametrize("number", [1, 4])
def test_limits_do_not_keep_the_search_from_closing_the_gap(number):
    # The bound of the whole box is the end of the action box, which no split of the limits'
    # columns lowers.
    policy = made.policy_of(number, hidden=(32, 32), sharpness=0.8)
    limits = {"cap": "dose <= 0.99 when severity > 1", "low": "dose >= 0.26 when severity > 2"}
    box = {"severity": (0.5, 2.5), "weight": (40.0, 80.0), "age": (-1.0, 1.5)}
    found = safety.certify(policy.with_limits(limits), box, seconds=20.0)
    assert found.gaps["dose"] <= 0.05
    assert max(end.boxes for end in found.ends) < 500


@pytest.mark.parametrize("rule", ["median", "consensus"])
@pytest.mark.parametrize("members", [2, 5])
def test_bounds_of_an_ensemble_at_a_single_state_are_close(tmp_path, members, rule):
    policy, rng = (
        made.policy_of(4, members=members, rule=rule, hidden=(16, 16)),
        np.random.default_rng(0),
    )
    for state in rng.normal((1.5, 60.0, 0.3), (0.9, 20.0, 1.2), (3, 3)).astype(np.float32):
        box = dict(zip(made.OBSERVATION, map(float, state), strict=True))
        found = safety.certify(policy, box, seconds=0.05)
        low, high = (np.clip(end, policy.low, policy.high) for end in policy.support(state))
        size = np.subtract(made.HIGH, made.LOW)
        assert (found.low <= low).all() and (low - found.low <= 1e-3 * size).all()
        assert (found.high >= high).all() and (found.high - high <= 1e-3 * size).all()
    assert checker.check(*read(written(tmp_path, found))) >= 4
