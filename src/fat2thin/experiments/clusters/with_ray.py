"""Tasks on a Ray cluster: Ray retries a task whose worker or machine was lost."""

import json
import logging
import os
import socket
import time
import warnings
from collections.abc import Sequence
from typing import Any

from fat2thin.experiments.clusters import tasks
from fat2thin.experiments.clusters.options import ClusterOptions, load_extra
from fat2thin.experiments.clusters.shared_folder import Session
from fat2thin.experiments.clusters.tasks import FAILED, TaskResult, WorkerReport
from fat2thin.terminal_text import counted

_CONNECT_SECONDS = 10.0  # for the head of a cluster to accept a connection
_LOOK_SECONDS = 5.0  # between looks for machines that were lost
_PROBE_SECONDS = 300.0  # for the report of a worker: its process starts and loads the package
_STOP_SECONDS = 30.0  # for workers to write a checkpoint after Ctrl-C


_log = logging.getLogger(__name__)


class RayWorkers:
    """The workers of a Ray cluster."""

    def __init__(self, options: ClusterOptions, address: str) -> None:
        # Nothing about this work leaves the machines of the cluster.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray = load_extra("ray", "ray")
        self._ray, self._options = ray, options
        if address != "local":
            _refuse_nobody(address, ray.util.get_node_ip_address())
        # Of a machine that was lost Ray prints the log, hundreds of lines; there is no option.
        load_extra("ray._private.worker", "ray").print_to_stdstream = lambda *_, **__: None
        self._waiting: list[tuple[int, str]] = []
        self._tasks: dict[Any, int] = {}
        local = {"include_dashboard": False} if address == "local" else {}
        try:
            with warnings.catch_warnings():
                # Ray forks to start its own programs at once, which does not concern JAX.
                warnings.simplefilter("ignore")
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
        except (ConnectionError, RuntimeError, ValueError) as error:
            first = str(error).strip().partition("\n")[0]
            raise ValueError(f"no Ray cluster could be used at {address}: {first}") from error
        self._hosts = self._alive()
        self._looked = time.monotonic()
        self._nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        gpus = options.gpus_per_worker
        if gpus is None:
            gpus = 1 if any(found.get("GPU") for found in self._nodes.values()) else 0
        self._needs = {"num_cpus": options.cpus_per_worker, "num_gpus": gpus}
        self._nodes = {node: found for node, found in self._nodes.items() if self._places(found)}
        if not self._nodes:
            self.close()
            raise ValueError(
                f"no machine of the Ray cluster at {address} has {options.cpus_per_worker} CPUs "
                f"and {gpus} GPUs for a worker: ask for fewer"
            )

    def _places(self, resources: dict[str, float]) -> int:
        """Return how many workers a machine has room for."""
        cpus, gpus = self._needs["num_cpus"], self._needs["num_gpus"]
        places = resources.get("CPU", 0) // cpus
        return int(min(places, resources.get("GPU", 0) // gpus) if gpus else places)

    @property
    def count(self) -> int:
        """Number of packs that can be computed at the same time."""
        places = sum(map(self._places, self._nodes.values()))
        return min(places, self._options.workers or places)

    def reports(self, session: Session) -> list[WorkerReport]:
        """Return the report of one worker of every machine, without machines lost meanwhile."""
        strategies = load_extra("ray.util.scheduling_strategies", "ray")
        asked, text = {}, json.dumps(session._asdict())
        for node in self._nodes:
            there = strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            examine = self._ray.remote(scheduling_strategy=there, **self._needs)(tasks.examine)
            asked[examine.remote(text)] = node
        ready, late = self._ray.wait([*asked], num_returns=len(asked), timeout=_PROBE_SECONDS)
        found, silent = [], {asked[one]: f"no answer in {_PROBE_SECONDS:g} seconds" for one in late}
        for one in ready:
            try:
                found.append(WorkerReport(*json.loads(self._ray.get(one))))
            except self._ray.exceptions.RayError as error:
                silent[asked[one]] = f"it cannot run this version of fat2thin ({last_line(error)})"
        alive = self._alive()
        for node, problem in silent.items():
            if host := alive.get(node):
                named = f"{host} (node {node[:8]}): {problem}"
                found.append(WorkerReport(host, named, None))
        return found

    def submit(self, texts: Sequence[tuple[int, str]]) -> None:
        """Start tasks, given by number and text: all, or as many as `workers` of the options."""
        self._waiting += texts
        needs = {"max_retries": self._options.retries, **self._needs}
        compute = self._ray.remote(**needs)(tasks.work)
        # Without a limit Ray has all of them, so that machines which join later get some.
        most = self._options.workers or len(self._tasks) + len(self._waiting)
        while self._waiting and len(self._tasks) < most:
            number, text = self._waiting.pop(0)
            self._tasks[compute.remote(text)] = number

    def ended(self, wait: float) -> list[tuple[int, TaskResult]]:
        """Return the results of tasks that have ended, after at most `wait` seconds."""
        ready, _ = self._ray.wait([*self._tasks], num_returns=1, timeout=wait)
        over = [(self._tasks.pop(one), self._result(one)) for one in ready]
        self.submit([])
        self._report_lost_machines()
        return over

    def _alive(self) -> dict[str, str]:
        """Return the host name of each machine of the cluster, by its number."""
        nodes = self._ray.nodes()
        return {one["NodeID"]: one["NodeManagerHostname"] for one in nodes if one["Alive"]}

    def _report_lost_machines(self) -> None:
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked, before, self._hosts = time.monotonic(), self._hosts, self._alive()
        for node in before.keys() - self._hosts.keys():
            _log.warning(
                "%s (node %s) was lost. Its packs are tried again; %s left.",
                before[node], node[:8], counted(len(self._hosts), "machine"),
            )  # fmt: skip

    def _result(self, one: Any) -> TaskResult:
        try:
            return TaskResult(*json.loads(self._ray.get(one)))
        except self._ray.exceptions.RayTaskError as error:
            return TaskResult(FAILED, f"a worker failed: {last_line(error)}")
        except self._ray.exceptions.RayError as error:
            first = str(error).strip().partition("\n")[0]
            tried = f"its workers were lost {self._options.retries + 1} times"
            return TaskResult(FAILED, f"{tried}, the last time by: {first}")

    def stop(self) -> None:
        """Ask all tasks to write a checkpoint and end."""
        for one in self._tasks:
            self._ray.cancel(one, force=False)
        if self._tasks:
            count = len(self._tasks)
            self._ray.wait([*self._tasks], num_returns=count, timeout=_STOP_SECONDS)

    def close(self) -> None:
        """Disconnect; Ray on this machine alone is stopped."""
        self._ray.shutdown()


def _refuse_nobody(address: str, own: str) -> None:
    """Raise a ValueError if nothing listens at an address: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    # Ray's head may listen at its own address only.
    hosts = [host.strip("[]"), *([own] if host in ("localhost", "127.0.0.1") else [])]
    for one in hosts:
        try:
            socket.create_connection((one, int(port)), timeout=_CONNECT_SECONDS).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
    raise ValueError(
        f"no Ray cluster could be used at {address}: {reason}. The address is that of the head, "
        "which `ray start --head` prints"
    )


def last_line(error: Exception) -> str:
    """Return the last line of an error, which in a traceback says what was wrong."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
