"""Errors of tanh, exp and log over all float32 numbers, in JAX on a CPU, NumPy and C.

    python benchmarks/elementary.py --out docs/results/elementary.json

Certificates state a bound on these errors (`fat2thin.safety.arithmetic`). Every float32 pattern is
evaluated and compared with NumPy's float64 function, whose own error is below 1e-15. An error is
given as a multiple of 2^-24 of the exact result where that is a normal number; what is smaller is
compared with the smallest normal number, because hardware may flush it to zero. `--stride N`
evaluates one pattern in N.
"""

import argparse
import ctypes
import json
import subprocess
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin import atomic_files
from fat2thin.tables import Table

FUNCTIONS = ("tanh", "exp", "log")
PATTERNS, CHUNK = 2**32, 2**22
UNIT, TINY = 2.0**-24, 2.0**-126
C_SOURCE = "\n".join(
    ["#include <math.h>"]
    + [
        f"void {name}_all(const float *x, float *y, long n) "
        f"{{ for (long i = 0; i < n; i++) y[i] = {name}f(x[i]); }}"
        for name in FUNCTIONS
    ]
)


def compiled_c(folder):
    """Return the functions of the C library, each from an array to an array."""
    source, library = Path(folder, "all.c"), Path(folder, "all.so")
    source.write_text(C_SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library, "-lm"], check=True)
    loaded = ctypes.CDLL(str(library))

    def function(name):
        pointer = ctypes.POINTER(ctypes.c_float)

        def apply(x):
            y = np.empty_like(x)
            arguments = (x.ctypes.data_as(pointer), y.ctypes.data_as(pointer))
            getattr(loaded, f"{name}_all")(*arguments, ctypes.c_long(x.size))
            return y

        return apply

    return {name: function(name) for name in FUNCTIONS}


def runtimes(folder):
    """Return, by runtime and function, a callable on float32 arrays."""
    in_jax = {name: jax.jit(getattr(jnp, name)) for name in FUNCTIONS}
    return {
        "JAX": {name: lambda x, one=one: np.asarray(one(x)) for name, one in in_jax.items()},
        "NumPy": {name: getattr(np, name) for name in FUNCTIONS},
        "C": compiled_c(folder),
    }


def errors(function, found, x, exact):
    """Return the largest relative error, in units, and the largest error of tiny results."""
    large = np.finfo(np.float32).max
    finite = np.isfinite(exact) & (np.abs(exact) <= large) & np.isfinite(x)
    # A subnormal input may count as zero; its result is compared with the tiny number.
    finite &= (np.abs(x) >= TINY) | (function == "exp")
    size = np.abs(exact)
    normal = finite & (size >= TINY)
    difference = np.abs(found.astype(np.float64) - exact)
    difference = np.where(np.isnan(difference), np.inf, difference)
    relative = np.max(difference[normal] / size[normal], initial=0.0) / UNIT
    tiny = np.max(difference[finite & ~normal], initial=0.0) / TINY
    return float(relative), float(tiny)


def measure(stride, least=0, most=PATTERNS):
    """Return, by runtime and function, the largest errors over all patterns."""
    worst: dict[tuple[str, str], tuple[float, ...]] = {}
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        known = runtimes(folder)
        for start in range(least, most, CHUNK * stride):
            stop = min(start + CHUNK * stride, most)
            x = np.arange(start, stop, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)
            for function in FUNCTIONS:
                exact = getattr(np, function)(x.astype(np.float64))
                for runtime, functions in known.items():
                    found = errors(function, functions[function](x), x, exact)
                    old = worst.get((runtime, function), (0.0, 0.0))
                    worst[runtime, function] = tuple(map(max, old, found))
    return worst


def main():
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="evaluate one pattern in N")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    began = time.perf_counter()
    found = measure(given.stride)
    rows = tuple(
        {"runtime": runtime, "function": function, "relative": one[0], "tiny": one[1]}
        for (runtime, function), one in found.items()
    )
    note = f"{PATTERNS // given.stride:,} inputs each, {time.perf_counter() - began:.0f} s"
    print(Table("largest errors: relative in 2^-24, of tiny results in 2^-126", rows, (note,)))
    if given.out is not None:
        versions = {"jax": jax.__version__, "numpy": np.__version__}
        saved = {"stride": given.stride, "versions": versions, "rows": rows}
        atomic_files.write(given.out, json.dumps(saved, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
