"""Where something is computed: versions and device, as run.json and checkpoints name them."""

import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path

import jax

from fat2thin import __version__

_PACKAGES = ("jax", "jaxlib", "numpy", "numpyro", "equinox", "optax", "safetensors")
_PROCESSORS = Path("/proc/cpuinfo")


def versions() -> dict[str, str]:
    """Those of Python, of fat2thin and of the packages that numbers may depend on."""
    return {
        "python": platform.python_version(),
        "fat2thin": __version__,
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def device() -> str:
    """The default device, a processor by its model: another one may round differently."""
    first = jax.devices()[0]
    kind = _processor() if first.platform == "cpu" else first.device_kind
    return f"{first.platform}: {kind}"


def _processor() -> str:
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def difference(then: Mapping[str, object], now: Mapping[str, object]) -> str:
    """What changed, in words; empty where nothing did."""
    return "; ".join(
        f"{name} {then.get(name)} then, {now.get(name)} now"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    )
