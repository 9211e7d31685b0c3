"""Run specifications: seeds, checks of options and settings, JSON."""

import dataclasses
import json

import numpy as np
import pytest

from fat2thin import training
from fat2thin.algorithms.fttpo_config import FtTPOConfig
from fat2thin.data import readers
from fat2thin.settings.config import make_config
from fat2thin.settings.options import explain
from fat2thin.settings.spec import RunSpec, difference, expand_seeds, make_spec


def spec_of(**options):
    return make_spec("stand_in", "tiny/shared", **{"steps": 10, **options})


def test_seeds_are_a_count_or_a_list():
    assert expand_seeds(10) == tuple(range(10))
    assert expand_seeds([3]) == (3,)
    assert expand_seeds(range(4, 6)) == (4, 5)


def test_seeds_may_be_an_array(without_type_checks):
    assert expand_seeds(np.array([4, 2])) == (4, 2)


@pytest.mark.parametrize("seeds", [0, -1, [], [1, 1], [-1], [2**31]])
def test_invalid_seeds_are_refused(seeds):
    with pytest.raises(ValueError, match="seeds must be"):
        expand_seeds(seeds)


def test_a_specification_survives_json():
    spec = spec_of(
        seeds=[3, 1], snapshots=[5, 0], settings={"widths": [4, 2], "limit": 2, "noise": 1}
    )
    assert spec.seeds == (3, 1) and spec.snapshots == (0, 5)
    assert spec.config.widths == (4, 2) and spec.config.limit == 2.0
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_specification_is_hashable_and_frozen():
    assert hash(spec_of()) == hash(spec_of())
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec_of().steps = 3


def test_stops_are_evaluations_and_snapshots():
    spec = spec_of(steps=10, evaluate_every=4, snapshots=[3])
    assert spec.evaluation_steps == (0, 4, 8, 10)
    assert spec.stops == (0, 3, 4, 8, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"episodes": 0}, "episodes must be"),
        ({"evaluate_every": -1}, "evaluate_every must be"),
        ({"log_every": 0}, "log_every must be"),
        ({"snapshots": [11]}, "beyond the last step 10, got 11"),
        ({"settings": {"learning_rate": -1.0}}, "learning_rate must be positive, got -1.0"),
        ({"settings": {"learning_rate": "fast"}}, "learning_rate must be one number, got 'fast'"),
        ({"settings": {"learning_rate": [0.1, 0.2]}}, "learning_rate must be one number"),
        ({"settings": {"learning_rate": True}}, "learning_rate must be one number"),
        ({"settings": {"rounds": 1.5}}, "rounds must be a whole number"),
        ({"settings": {"loud": 1}}, "loud must be True or False"),
        ({"settings": {"name": 1}}, "name must be a string"),
        ({"settings": {"widths": [1.5]}}, "widths must be a whole number"),
        ({"settings": {"widths": 8}}, "widths must be a list of whole numbers"),
        ({"settings": {"limit": "x"}}, r"limit must be float \| None"),
        ({"config": FtTPOConfig()}, "config must be a Config for 'stand_in', got a FtTPOConfig"),
    ],
)
def test_options_and_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        spec_of(**options)


def test_settings_override_fields_of_a_given_config(tiny_world):
    spec = spec_of(config=tiny_world.config(noise=0.5), settings={"learning_rate": 1})
    assert spec.config == tiny_world.config(noise=0.5, learning_rate=1.0)


def test_an_unknown_name_raises_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no algorithm is called 'stand_on'.*'stand_in'"):
        make_spec("stand_on", "tiny/shared", steps=1)
    with pytest.raises(ValueError, match=r"no data set is called 'tinny/shared'.*tiny/shared"):
        make_spec("stand_in", "tinny/shared", steps=1)
    with pytest.raises(ValueError, match="no setting 'lerning_rate'; there are learning_rate, "):
        spec_of(settings={"lerning_rate": 0.1})


def test_an_unknown_option_raises_an_error_that_lists_settings_and_options():
    with pytest.raises(ValueError, match="no setting 'seed'; there are seeds, "):
        training.train("stand_in", "tiny/shared", steps=1, seed=3)


@dataclasses.dataclass(frozen=True)
class Linked:
    """Settings that need one another."""

    low: float = 0.0
    high: float = 1.0
    kind: str = "plain"
    extra: float | None = None
    must: float | None = None

    def check(self):
        if not self.low < self.high:
            raise ValueError("low must be below high")
        if (self.kind == "rich") != (self.must is not None):
            raise ValueError("kind='rich' and must go together")
        if self.extra is not None and self.kind != "rich":
            raise ValueError("extra is for kind='rich'")


@pytest.mark.parametrize(
    ("brought", "given", "made"),
    [
        ({"low": 0.5, "high": 2.0}, {"low": 0.1}, {"low": 0.1, "high": 2.0}),
        # The given one wins, whichever of the two it is.
        ({"low": 0.5, "extra": None}, {"high": 0.2}, {"high": 0.2}),
        ({"high": 0.5, "low": 0.2}, {"low": 0.7}, {"low": 0.7}),
        # Neither of the two is valid without the other.
        ({"kind": "rich", "must": 1.0, "high": 0.1}, {"low": 0.5},
         {"kind": "rich", "must": 1.0, "low": 0.5}),
        ({"extra": 3.0, "must": 1.0, "kind": "rich"}, {"kind": "plain"}, {"kind": "plain"}),
        # The given setting is valid only with one that is brought.
        ({"kind": "rich", "low": 0.5}, {"must": 2.0, "high": 0.2},
         {"kind": "rich", "must": 2.0, "high": 0.2}),
    ],
)  # fmt: skip
def test_given_settings_take_precedence_over_brought_ones(tiny_world, brought, given, made):
    linked = tiny_world.algorithm._replace(config=Linked, check=Linked.check)
    assert make_config(linked, None, given, brought) == Linked(**made)


def test_given_settings_that_contradict_each_other_are_refused(tiny_world):
    linked = tiny_world.algorithm._replace(config=Linked, check=Linked.check)
    with pytest.raises(ValueError, match="low must be below high"):
        make_config(linked, None, {"low": 2.0, "high": 0.5}, {"extra": 1.0})
    with pytest.raises(ValueError, match="no setting 'lo'"):
        make_config(linked, None, {"lo": 2.0}, {"high": 1.0})


def test_the_difference_of_specifications_is_listed_by_field():
    lines = difference(spec_of().to_json(), spec_of(steps=11, settings={"noise": 2}).to_json())
    assert lines == ["config.noise: 0.01 there, 2.0 here", "steps: 10 there, 11 here"]


def test_settings_are_explained_from_their_source(tiny_world):
    explained = {name: (default, text) for name, default, text in explain(tiny_world.config)}
    assert explained["learning_rate"] == (0.1, "Step of the descent; the usual range is wide.")
    assert explained["widths"] == ((8,), "Not used.")
    assert explained["limit"] == (None, "")


def test_every_setting_of_fttpo_is_explained():
    assert all(text for _, _, text in explain(FtTPOConfig))


def test_a_specification_is_read_back_without_its_data(monkeypatch):
    values = spec_of().to_json()
    monkeypatch.delitem(readers._READERS, "tiny/shared")
    assert RunSpec.from_json(values).dataset == "tiny/shared"


def test_too_many_rows_of_metrics_are_refused():
    with pytest.raises(ValueError, match=r"8,000,000 rows .*use log_every=2000 or more"):
        make_spec("stand_in", "tiny/own", steps=10_000_000, seeds=200)
    make_spec("stand_in", "tiny/own", steps=10_000_000, seeds=200, log_every=2000)
