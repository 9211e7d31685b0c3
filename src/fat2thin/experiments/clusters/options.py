"""Options of commands that can use a cluster, declared once. Imports nothing heavy."""

import dataclasses
import importlib
import re
from typing import Any, NamedTuple

RAY, SLURM = "ray", "slurm"


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """Where the runs of a plan are computed, and with what."""

    cluster: str | None = None
    """Where runs are computed: "ray", Ray on this machine; "ray:HOST:PORT", an existing Ray
    cluster, from one of its machines; or "slurm". Default: this process."""
    workers: int | None = None
    """Packs of runs computed at the same time. Default: as many as the Ray cluster has GPUs, or
    CPUs if it has none; 8 for SLURM."""
    cpus_per_worker: int = 1
    """CPUs of each worker."""
    gpus_per_worker: int | None = None
    """GPUs of each worker. Default: 1 if the Ray cluster has GPUs, else 0; 0 for SLURM."""
    retries: int = 10
    """How often a pack is tried again after its worker was lost. It resumes from its checkpoint."""
    checkpoint_seconds: float = 60.0
    """About how many seconds of work a lost worker may cost."""
    time_limit: int = 1440
    """Time limit of a SLURM job in minutes. A job that reaches it is queued again and resumes."""
    slurm: tuple[str, ...] = ()
    """Other parameters of SLURM, by submitit's names: --slurm partition=gpu mem=32GB."""
    dry_run: bool = False
    """Print the packs, and for SLURM the text for sbatch, and compute nothing."""


class Cluster(NamedTuple):
    """The cluster that an option names."""

    kind: str
    """RAY or SLURM."""
    address: str = "local"
    """Address of a Ray cluster; "local" starts one on this machine."""


def parse_cluster(text: str) -> Cluster:
    """Return the cluster that `--cluster` names; a ValueError lists what it can be."""
    if text == SLURM:
        return Cluster(SLURM)
    kind, colon, address = text.partition(":")
    if kind == RAY and not colon:
        return Cluster(RAY)
    if kind == RAY and re.fullmatch(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", address):
        return Cluster(RAY, address)
    raise ValueError(f"--cluster is ray, ray:HOST:PORT or slurm, got {text!r}")


def load_extra(module: str, extra: str) -> Any:
    """Return a module of an optional package; a ValueError says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--cluster {extra} needs a package that is not installed ({error}): "
            f"pip install 'fat2thin[{extra}]'"
        ) from None


def check(options: ClusterOptions) -> None:
    """Refuse numbers that no cluster can have."""
    least = {"workers": 1, "cpus_per_worker": 1, "gpus_per_worker": 0, "retries": 0}
    least |= {"checkpoint_seconds": 0, "time_limit": 1}
    for name, lowest in least.items():
        value = getattr(options, name)
        if value is not None and not value >= lowest:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {lowest}, got {value}")
    cluster = None if options.cluster is None else parse_cluster(options.cluster)
    if cluster is None:
        default = ClusterOptions(dry_run=options.dry_run)
        for field in dataclasses.fields(options):
            if getattr(options, field.name) != getattr(default, field.name):
                option = field.name.replace("_", "-")
                raise ValueError(f"--{option} needs --cluster ray, ray:HOST:PORT or slurm")
    elif options.slurm and cluster.kind != SLURM:
        raise ValueError("--slurm needs --cluster slurm")
