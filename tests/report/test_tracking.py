"""Runs that are tracked: folders built by hand, real event files, and stand-ins for services."""

import collections
import json
import math
import struct
import sys
import threading
import time
from types import ModuleType

import numpy as np
import pytest

from fat2thin.cli.main import main
from fat2thin.evaluation.returns import Evaluation
from fat2thin.report import tracking
from fat2thin.runs.folder import RunFolder
from fat2thin.runs.lock import locked

SPEC = {"algorithm": "stand_in", "dataset": "tiny/own", "config": {}, "seeds": [3, 5], "steps": 40}
ABOUT = {"format": 1, "status": "running", "spec": SPEC, "problem": {}, "sha256": []}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An unfinished run of seeds 3 and 5 with metrics at step 10; tests run beside it."""
    monkeypatch.chdir(tmp_path)
    made = RunFolder(tmp_path / "runs" / "first")
    made.path.mkdir(parents=True)
    made.write_about(ABOUT)
    add_metrics(made, 10, 1.0, 3.0)
    return made


def add_metrics(folder, step, *losses):
    rows = zip(SPEC["seeds"], losses, strict=True)
    folder.append_metrics([{"step": step, "seed": seed, "loss": loss} for seed, loss in rows])


def evaluate(folder, *steps):
    """Write evaluations: returns step ± 1 of seed 3, twice that of seed 5."""
    returns = [[[step - 1, step + 1], [2 * step - 2, 2 * step + 2]] for step in steps]
    measures = {"dose": np.zeros((len(steps), 2))}
    folder.write_evaluations([*steps], {"actor_sampled": Evaluation(np.array(returns), measures)})


class Service(ModuleType):
    """A stand-in for wandb or trackio that keeps what it is given."""

    def __init__(self, name):
        super().__init__(name)
        self.opened, self.rows, self.open = [], collections.defaultdict(list), 0

    def init(self, **options):
        self.opened.append(options)
        self.open += 1
        return self.Run(self, options["name"])

    class Run:
        def __init__(self, service, name):
            self.service, self.name = service, name

        def define_metric(self, name, step_metric):
            assert (name, step_metric) == ("*", "step")

        def log(self, values, step=None):
            if self.service.__name__ == "wandb":
                assert step is None
                step = values.pop("step")
            self.service.rows[self.name].append((step, values))

        def finish(self):
            self.service.open -= 1


@pytest.fixture(params=["wandb", "trackio"])
def service(request, monkeypatch):
    """The stand-in, in place of the package."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    made = Service(request.param)
    monkeypatch.setitem(sys.modules, request.param, made)
    return made


def scalars(folder):
    """Return (name, step, value) of all event files of a folder, in order."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted(folder.glob("events*")):
        contents = path.read_bytes()
        while contents:
            # A record: its length, a checksum of four bytes, an event, another checksum.
            (length,) = struct.unpack("<Q", contents[:8])
            event = event_pb2.Event.FromString(contents[12 : 12 + length])
            found += [(one.tag, event.step, one.simple_value) for one in event.summary.value]
            contents = contents[16 + length :]
    return found


def test_tensorboard_gets_every_seed_and_their_mean_once(folder, tmp_path, capsys):
    pytest.importorskip("tensorboardX")
    add_metrics(folder, 20, 2.0, math.nan)
    evaluate(folder, 0)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    for _ in range(2):
        main(["track", str(folder.path), "--to", "tensorboard"])
    out = tmp_path / "tracking" / "tensorboard" / "first"
    returns = ("evaluation/actor_sampled/return", 0), ("evaluation/actor_sampled/dose", 0)
    assert scalars(out / "seed_3") == [
        ("metrics/loss", 10, 1.0), ("metrics/loss", 20, 2.0), (*returns[0], 0.0), (*returns[1], 0.0)
    ]  # fmt: skip
    assert ("metrics/loss", 20) not in [row[:2] for row in scalars(out / "seed_5")]
    assert scalars(out / "mean")[:2] == [("metrics/loss", 10, 2.0), ("metrics/loss", 20, 2.0)]
    printed = capsys.readouterr().out
    assert "sent 6 rows to tracking/tensorboard/first, up to step 20" in printed
    assert "sent 0 rows" in printed
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_service_gets_a_run_per_seed_with_the_specification(folder, service, capsys):
    evaluate(folder, 0, 20)
    main(["track", str(folder.path), "--to", service.__name__, "--project", "ours"])
    assert service.open == 0
    names = ["first-seed_3", "first-seed_5"]
    assert [options["name"] for options in service.opened] == names
    for options, seed in zip(service.opened, SPEC["seeds"], strict=True):
        assert (options["project"], options["group"]) == ("ours", "first")
        assert options["config"] == {**SPEC, "seed": seed}
    assert service.rows["first-seed_5"] == [
        (10, {"metrics/loss": 3.0}),
        (0, {"evaluation/actor_sampled/return": 0.0, "evaluation/actor_sampled/dose": 0.0}),
        (20, {"evaluation/actor_sampled/return": 40.0, "evaluation/actor_sampled/dose": 0.0}),
    ]
    offline = service.__name__ == "wandb"
    assert service.opened[0].get("mode") == ("offline" if offline else None)
    assert ("offline" in capsys.readouterr().out) == offline


def test_with_an_api_key_wandb_chooses_its_mode(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "made up")
    assert not tracking.wandb_is_offline()


def test_tracking_continues_where_it_ended(folder, service):
    def track():
        return tracking.track(folder.path, service.__name__)

    assert track() == 2
    contents = folder.metrics_contents()
    # A step that one seed has, and half a line: sent once both seeds have it.
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "seed": 3, "loss": 2.0}\n{"step": 20, "se')
    assert track() == 0
    # A run that resumed from before that step.
    (folder.path / "metrics.jsonl").unlink()
    (folder.path / "metrics.jsonl").write_bytes(contents)
    add_metrics(folder, 20, 2.0, 4.0)
    assert track() == 2
    evaluate(folder, 0)
    assert track() == 2
    assert [step for step, _ in service.rows["first-seed_3"]] == [10, 20, 0]
    if service.__name__ == "wandb":
        assert len({options["id"] for options in service.opened}) == 2


def test_following_sends_values_until_the_run_ends(folder, service):
    lines, ready = [], threading.Event()

    def train():
        with locked(folder.path):
            ready.set()
            while not lines:
                time.sleep(0.01)
            add_metrics(folder, 20, 2.0, 4.0)
            while len(lines) < 2:
                time.sleep(0.01)
            add_metrics(folder, 40, 1.0, 1.0)
            folder.write_about({**ABOUT, "status": "finished", "step": 40})

    training = threading.Thread(target=train, daemon=True)
    training.start()
    assert ready.wait(5.0)
    rows = tracking.track(
        folder.path, service.__name__, follow=True, show=lines.append, refresh=0.01
    )
    training.join(5.0)
    assert rows == 6 and not training.is_alive() and service.open == 0
    assert [step for step, _ in service.rows["first-seed_5"]] == [10, 20, 40]
    assert lines[-1] == f"sent 6 rows to tracking/{service.__name__}/first, up to step 40"


def test_following_ends_when_the_run_is_interrupted(folder, service):
    lines = []
    arguments = {"follow": True, "show": lines.append, "refresh": 0.01, "patience": 0.02}
    assert tracking.track(folder.path, service.__name__, **arguments) == 2
    assert "run the same command again" in lines[-1]


@pytest.mark.parametrize(
    ("to", "package", "install"),
    [
        ("tensorboard", "tensorboardX", r"fat2thin\[tensorboard\]"),
        ("wandb", "wandb", r"fat2thin\[tracking\]"),
        ("trackio", "trackio", "trackio"),
    ],
)
def test_a_missing_package_is_named_with_its_command(folder, monkeypatch, to, package, install):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match=f"{package} is not installed: pip install '{install}'$"):
        main(["track", str(folder.path), "--to", to])


def test_bad_folders_are_refused_in_one_line(folder, service, tmp_path):
    def refused(message, path=folder.path, *options):
        with pytest.raises(SystemExit, match=message) as end:
            main(["track", str(path), "--to", service.__name__, *options])
        assert "\n" not in str(end.value)

    refused("holds no run", tmp_path)
    refused("inside the run folder", folder.path, "--out", str(folder.path / "tracking"))
    assert not service.opened
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "seed": 4, "loss": 2.0}\n')
    refused("metrics.jsonl, line 3, is damaged: it is not of seed 3")
    state = tmp_path / "tracking" / service.__name__ / "first" / tracking.STATE
    assert json.loads(state.read_text())["metrics"] == 11
    folder.write_about({**ABOUT, "sha256": ["other"]})
    refused("has the values of another run: choose another folder with --out")
    state.write_text("{}")
    refused("fat2thin.json is damaged: remove")
