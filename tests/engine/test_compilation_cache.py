import json
import os
import stat
import subprocess
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from fat2thin.cli.main import main
from fat2thin.engine import compilation_cache

FOLDER = "jax_compilation_cache_dir"
SHORTEST = "jax_persistent_cache_min_compile_time_secs"
SMALLEST = "jax_persistent_cache_min_entry_size_bytes"
OPTIONS = (FOLDER, SHORTEST, SMALLEST)


def options():
    return {name: getattr(jax.config, name) for name in OPTIONS}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch, tmp_path):
    """Remove JAX's cache and its options from the environment; restore them afterwards."""
    before = options()
    for name in OPTIONS:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update(FOLDER, None)
    jax_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


@pytest.fixture
def events():
    """Count the events of JAX's cache."""
    counted = Counter()

    def count(event, **details):
        counted[event.removeprefix("/jax/compilation_cache/")] += 1

    jax.monitoring.register_event_listener(count)
    yield counted
    jax.monitoring.unregister_event_listener(count)


def test_the_second_compilation_is_a_cache_hit(tmp_path, events):
    compilation_cache.use()
    jax.config.update(SHORTEST, 0.0)
    argument = jnp.asarray([1.0, 2.0])
    events.clear()

    def compile_again():
        # A new function each time, so that JAX's cache in memory does not have it.
        return float(jax.jit(lambda x: jnp.sum(x**3)).lower(argument).compile()(argument))

    assert compile_again() == 9.0
    assert (events["cache_misses"], events["cache_hits"]) == (1, 0)
    assert any((tmp_path / "fat2thin" / "jax").iterdir())
    assert compile_again() == 9.0
    assert (events["cache_misses"], events["cache_hits"]) == (1, 1)


def test_small_programs_are_kept_in_a_private_folder(tmp_path):
    compilation_cache.use()
    folder = tmp_path / "fat2thin" / "jax"
    assert options() == {FOLDER: str(folder), SHORTEST: 0.1, SMALLEST: -1}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("caches", [None, "", "relative"])
def test_without_a_cache_folder_the_home_folder_is_used(caches, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    if caches is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
    monkeypatch.setenv("HOME", str(tmp_path))
    compilation_cache.use()
    assert options()[FOLDER] == str(tmp_path / ".cache" / "fat2thin" / "jax")


def test_a_folder_set_by_the_user_is_kept(tmp_path, monkeypatch):
    before = options()
    monkeypatch.setenv(FOLDER.upper(), "elsewhere")
    compilation_cache.use()
    assert options() == before
    monkeypatch.delenv(FOLDER.upper())
    jax.config.update(FOLDER, "elsewhere")
    compilation_cache.use()
    assert options() == {**before, FOLDER: "elsewhere"}
    assert not any(tmp_path.iterdir())


def test_a_threshold_set_by_the_user_is_kept(monkeypatch):
    before = options()
    monkeypatch.setenv(SHORTEST.upper(), str(before[SHORTEST]))
    compilation_cache.use()
    assert options()[FOLDER] is not None
    assert options()[SHORTEST] == before[SHORTEST]


def test_a_folder_that_cannot_be_written_is_logged(tmp_path, monkeypatch, caplog):
    before = options()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compilation_cache.use()
    assert options() == before
    (line,) = caplog.messages
    assert line.startswith("compiled programs are not kept: ") and str(tmp_path / "file") in line


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files here")
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path, caplog):
    folder = tmp_path / "fat2thin" / "jax"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    before = options()
    compilation_cache.use()
    assert options() == before
    (line,) = caplog.messages
    assert f"other users can write to {folder}" in line


def test_the_command_line_sets_up_the_cache_before_jax_is_loaded(tmp_path):
    program = (
        "import json, sys; from fat2thin.cli import main as cli;"
        "sys.argv = ['fat2thin', 'algorithms'];"
        "assert 'jax' not in sys.modules; cli.main(); import jax;"
        f"print(json.dumps([getattr(jax.config, name) for name in {OPTIONS}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, env=os.environ
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == [str(tmp_path / "fat2thin" / "jax"), 0.1, -1]


def test_calls_of_train_and_of_main_do_not_change_the_cache(tmp_path, capsys):
    before = options()
    main(["train", "stand_in", "bare/log", "--steps", "2", "--out", str(tmp_path / "run")])
    assert options() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
