"""Many programs in one process are released before Linux ends the process."""

import sys

import jax
import pytest

import fat2thin
from fat2thin.engine import compilation_cache as cache
from fat2thin.experiments.plan import PlannedRun, PlanProgress, carry_out
from fat2thin.training import make_spec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a limit")


def mapped():
    with open("/proc/self/maps") as lines:
        return sum(1 for _ in lines)


def train(batch_size):
    """Train with a batch size, which is a program of its own; return the number of mappings."""
    fat2thin.train("stand_in", "bare/log", steps=1, batch_size=batch_size)
    return mapped()


@pytest.fixture
def set_limit(tmp_path, monkeypatch):
    """Pretend that the system allows this number of mappings, and that nothing was released."""
    monkeypatch.setattr(cache, "_after_release", 0)

    def set_limit(number):
        (tmp_path / "limit").write_text(f"{number}\n")
        monkeypatch.setattr(cache, "LIMIT", tmp_path / "limit")

    return set_limit


@pytest.fixture
def everything(monkeypatch):
    """Record calls of `jax.clear_caches`, which would make the other tests compile again."""
    calls = []
    monkeypatch.setattr(jax, "clear_caches", lambda: calls.append("cleared"))
    return calls


class Releases:
    """A fake jitted function that counts how often its programs were released."""

    count = 0

    def __call__(self):
        raise NotImplementedError

    def clear_cache(self):
        self.count += 1


def test_programs_above_half_of_the_limit_are_released(set_limit, everything):
    before = train(2)
    start = train(3)
    of_program = start - before
    assert of_program > 10
    set_limit(2 * start)
    assert max(train(size) for size in range(4, 7)) <= start + 1.5 * of_program
    assert not everything


def test_only_programs_of_the_loop_are_released(set_limit, tiny_world):
    traced = []

    @jax.jit
    def of_the_user(value):
        traced.append("user")
        return value + 1

    of_the_user(1.0)
    set_limit(2 * train(2) - 2)
    before = len(tiny_world.traces)
    train(2)
    assert len(tiny_world.traces) > before
    of_the_user(1.0)
    assert traced == ["user"]


def test_below_half_of_the_limit_a_program_is_reused(set_limit, tiny_world):
    set_limit(2 * train(2) + 200)
    before = len(tiny_world.traces)
    train(2)
    assert len(tiny_world.traces) == before


def test_everything_is_released_if_that_is_not_enough(set_limit, everything, caplog):
    set_limit(100)
    cache.make_room([])
    assert len(everything) == 1
    (line,) = caplog.messages
    assert "raise vm.max_map_count" in line


def test_nothing_is_released_on_other_systems(set_limit, everything, monkeypatch, tmp_path):
    set_limit(1)
    monkeypatch.setattr(cache, "MAPPINGS", tmp_path / "none")
    ours = Releases()
    cache.make_room([ours])
    assert not everything and not ours.count


def test_mappings_of_other_code_above_half_of_the_limit_cause_one_release(
    set_limit, monkeypatch, tmp_path
):
    """They remain after a release: the next waits until a tenth of the free mappings is used."""
    monkeypatch.setattr(cache, "MAPPINGS", tmp_path / "maps")
    set_limit(1000)
    ours = Releases()

    def training_starts_with(mappings):
        (tmp_path / "maps").write_text("\n" * mappings)
        cache.make_room([ours])
        return ours.count

    assert [training_starts_with(count) for count in (500, 600, 620, 640)] == [0, 1, 1, 1]
    assert [training_starts_with(count) for count in (641, 670, 676)] == [2, 2, 2]
    assert training_starts_with(677) == 3
    # A release by other code counts too.
    assert [training_starts_with(count) for count in (300, 500, 501)] == [3, 3, 4]


@pytest.mark.parametrize("text", [None, "", "many"])
def test_a_limit_that_cannot_be_read_is_the_default(text, monkeypatch, tmp_path):
    if text is not None:
        (tmp_path / "limit").write_text(text)
    monkeypatch.setattr(cache, "LIMIT", tmp_path / "limit")
    assert cache._limit() == 65_530


@pytest.mark.slow
@pytest.mark.long
def test_a_plan_of_80_programs_stays_below_the_limit(set_limit, tmp_path):
    """Half of the limit leaves room for ten programs."""
    start = train(2)
    of_program = train(3) - start
    set_limit(2 * (start + 10 * of_program))
    counts = []

    class Counts(PlanProgress):
        def program_is_done(self, number):
            super().program_is_done(number)
            counts.append(mapped())

    carry_out(
        [
            PlannedRun(f"{size}", make_spec("stand_in", "bare/log", steps=1, batch_size=size))
            for size in range(4, 84)
        ],
        tmp_path / "plan",
        Counts(),
    )
    assert len(counts) == 80
    assert start + 8 * of_program < max(counts) < start + 12 * of_program
