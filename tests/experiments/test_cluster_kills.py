"""A Ray cluster of three machines whose nodes are killed at random moments."""

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fat2thin
from fat2thin.experiments.clusters import driver
from fat2thin.experiments.clusters.cutting import cut
from fat2thin.experiments.clusters.options import ClusterOptions
from fat2thin.experiments.plan import PlannedRun, PlanProgress, missing_packs
from fat2thin.experiments.plan import carry_out as carry_out_here
from fat2thin.runs import checkpoints
from fat2thin.runs.files import read_json
from fat2thin.training import load, make_spec

cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.filterwarnings("default")]

RUNS, NODES, KILLS, STEPS = 24, 3, 20, 40_000
SAME = ("metrics.jsonl", "evaluations.npz", "state.safetensors")


def plan(runs=RUNS, steps=STEPS):
    sizes = {"batch_size": 32, "evaluate_every": steps // 4, "episodes": 2, "log_every": 200}
    return [
        PlannedRun(
            f"run_{number}",
            make_spec(
                "iql", "treatment/quadratic@20", steps=steps, seeds=[number % 4],
                settings={"hidden": (8, 8), "learning_rate": 1e-4 * (1 + number)}, **sizes,
            ),
        )
        for number in range(runs)
    ]  # fmt: skip


@pytest.fixture
def cluster():
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    yield made
    made.shutdown()


def newest(folder):
    """Return how often a run was resumed, and the step of its newest checkpoint (-1: none)."""
    try:
        resumed = len(read_json(folder / "run.json").get("resumed", []))
        found = [one.place.step for one in checkpoints.intact(folder) if one.place.training]
    except (OSError, ValueError):
        return 0, -1
    return resumed, max(found, default=-1)


def resumed_at(folder):
    """Return the steps at which a run resumed."""
    places = load(folder).about.get("resumed", [])
    return [int(place.split()[-1].replace(",", "")) for place in places]


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
from experiments import test_cluster_kills as kills
from fat2thin.experiments.clusters import driver
from fat2thin.experiments.clusters.options import ClusterOptions
driver.carry_out(kills.plan({runs}, {steps}), {root!r}, options=ClusterOptions(**{chosen!r}))
"""


def start_driver(root, runs, steps, **chosen):
    """Start a driver as a process of its own."""
    chosen |= {"checkpoint_seconds": 0.5}
    tests = str(Path(__file__).parents[1])
    script = DRIVER.format(tests=tests, runs=runs, steps=steps, root=str(root), chosen=chosen)
    return subprocess.Popen([sys.executable, "-c", script])


class Killer:
    """Kills a random node and adds another, and notes the checkpoints that there were."""

    def __init__(self, cluster, root, packs):
        self.cluster, self.root, self.packs = cluster, root, packs
        self.nodes = [cluster.add_node(num_cpus=1) for _ in range(NODES)]
        self.kills, self.seen, self.random = 0, [], random.Random(0)

    def wait(self):
        time.sleep(self.random.uniform(1.0, 6.0))

    def kill(self):
        for pack in self.packs:
            before = [newest(self.root / one.name) for one in pack.runs]
            common = min(step for _, step in before)
            for one, (resumes, _) in zip(pack.runs, before, strict=True):
                self.seen.append((one.name, resumes, common))
        node = self.nodes.pop(self.random.randrange(NODES))
        # Kills the processes of this node with SIGKILL, by their numbers.
        self.cluster.remove_node(node, allow_graceful=False)
        self.kills += 1
        self.nodes.append(self.cluster.add_node(num_cpus=1))


def assert_same_bytes(planned, one_root, other_root):
    for one in planned:
        for name in SAME:
            there = Path(one.name) / name
            assert (one_root / there).read_bytes() == (other_root / there).read_bytes(), there


def test_runs_on_killed_nodes_have_the_bits_of_a_plain_run(cluster, tmp_path):
    planned, plain, root = plan(), tmp_path / "plain", tmp_path / "cluster"
    began = time.monotonic()
    carry_out_here(planned, plain, PlanProgress())
    print(f"plain: {time.monotonic() - began:.0f} s")
    killer = Killer(cluster, root, cut(missing_packs(planned, root)[0], NODES))
    began = time.monotonic()
    process = start_driver(root, RUNS, STEPS, cluster=f"ray:{cluster.address}", retries=200)
    try:
        while process.poll() is None and killer.kills < KILLS:
            killer.wait()
            killer.kill()
        assert process.wait(timeout=600) == 0
    finally:
        process.kill()
    print(f"cluster: {time.monotonic() - began:.0f} s, {killer.kills} nodes killed")
    assert_same_bytes(planned, root, plain)
    resumed = {one.name: resumed_at(root / one.name) for one in planned}
    print(f"runs resumed {sum(map(len, resumed.values()))} times in all")
    assert killer.kills == KILLS
    checked = 0
    for name, count, common in killer.seen:
        # The next resume after a kill starts at the newest checkpoint of the pack, or later.
        if common >= 0 and count < len(resumed[name]):
            assert resumed[name][count] >= common, (name, count, common, resumed[name])
            checked += 1
    print(f"{checked} pairs of a kill and the next resume of a run compared")
    assert checked > KILLS


def test_a_killed_driver_resumes(tmp_path):
    """The first driver is killed once two runs have a checkpoint."""
    root, planned = tmp_path / "cluster", plan(4, 20000)
    first = start_driver(root, 4, 20000, cluster="ray", workers=2)
    until = time.monotonic() + 120
    while sum(newest(root / one.name)[1] > 0 for one in planned) < 2:
        assert first.poll() is None and time.monotonic() < until
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    left = [one for one in planned if newest(root / one.name)[1] > 0]
    assert start_driver(root, 4, 20000, cluster="ray", workers=2).wait(timeout=300) == 0
    assert any(resumed_at(root / one.name) for one in left)
    carry_out_here(planned, tmp_path / "plain", PlanProgress())
    assert_same_bytes(planned, root, tmp_path / "plain")


def test_a_node_with_another_version_is_named(cluster, tmp_path):
    package = Path(fat2thin.__file__).parent
    shutil.copytree(package, tmp_path / "other" / "fat2thin")
    file = tmp_path / "other" / "fat2thin" / "__init__.py"
    text = file.read_text()
    file.write_text(text.replace(fat2thin.__version__, "0.0.1"))
    assert file.read_text() != text
    cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path / "other")})
    options = ClusterOptions(cluster=f"ray:{cluster.address}")
    with pytest.raises(driver.ClusterError, match=r"other versions: fat2thin .* 0\.0\.1 on"):
        driver.carry_out(plan(1, 10), tmp_path / "root", options=options)
    assert not (tmp_path / "root" / "run_0").exists()
