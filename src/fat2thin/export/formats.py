"""The formats of exports: what each writes, what it needs, and how its answers are computed."""

import contextlib
import ctypes
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin.export import portable
from fat2thin.export.c_header import c_header
from fat2thin.export.contents import Contents, States
from fat2thin.export.onnx_file import OPSET, onnx_file
from fat2thin.export.portable import Answer
from fat2thin.terminal_text import closest_first, did_you_mean

WEIGHTS, MODULE = "weights.npz", "policy.py"


class Unavailable(Exception):
    """Raised where a format cannot be run here; the message says what is missing."""


class Format(NamedTuple):
    """One format of exports."""

    files: tuple[str, ...]
    """Names of its files; weights.npz is part of every export."""
    extra: str | None
    """The extra of this package that writing needs."""
    needs: str | None
    """The module that the extra brings."""
    write: Callable[[Contents, dict[str, str]], dict[str, bytes]]
    """Returns the files. The second argument names what is exported."""
    run: Callable[[Contents, dict[str, bytes], States], Answer]
    """Returns the answers in some states, from the files; nothing of them is run as a program."""
    about: str
    """One line for people."""


def _write_numpy(contents: Contents, about: dict[str, str]) -> dict[str, bytes]:
    return {MODULE: Path(portable.__file__).read_bytes()}


def _run_numpy(contents: Contents, files: dict[str, bytes], states: States) -> Answer:
    if files[MODULE] != Path(portable.__file__).read_bytes():
        raise Unavailable(f"{MODULE} is not the one of this version of fat2thin, and is not run")
    return contents.policy()(*states)


def _write_c(contents: Contents, about: dict[str, str]) -> dict[str, bytes]:
    title = ", ".join(f"{name} {text}" for name, text in about.items())
    return {"policy.h": c_header(contents, title).encode()}


def _run_c(contents: Contents, files: dict[str, bytes], states: States) -> Answer:
    # A header is a program: only one that this version would write is compiled.
    title = files["policy.h"].partition(b"\n")[0].decode("utf-8", "replace").removeprefix("/* ")
    if c_header(contents, title).encode() != files["policy.h"]:
        raise Unavailable(
            "policy.h is not the one of this version of fat2thin, and is not compiled"
        )
    with compiled(files["policy.h"]) as library:
        return run_compiled(library, states, contents)


def _write_onnx(contents: Contents, about: dict[str, str]) -> dict[str, bytes]:
    return {"policy.onnx": onnx_file(contents, about)}


def _run_onnx(contents: Contents, files: dict[str, bytes], states: States) -> Answer:
    if importlib.util.find_spec("onnxruntime") is None:
        raise Unavailable("onnxruntime is not installed: pip install onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        files["policy.onnx"], options, providers=["CPUExecutionProvider"]
    )
    return Answer(*session.run([*Answer._fields], given(states)))


def _write_stablehlo(contents: Contents, about: dict[str, str]) -> dict[str, bytes]:
    from fat2thin.export.stablehlo_file import READER, stablehlo_file

    return {"policy.stablehlo": stablehlo_file(contents), "read_stablehlo.py": READER.encode()}


def _run_stablehlo(contents: Contents, files: dict[str, bytes], states: States) -> Answer:
    if importlib.util.find_spec("flatbuffers") is None:
        raise Unavailable("flatbuffers is not installed: pip install 'fat2thin[stablehlo]'")
    import jax.export

    exported = jax.export.deserialize(bytearray(files["policy.stablehlo"]))
    if {*re.findall(r"custom_call @?([\w.]+)", exported.mlir_module())} - {"shape_assertion"}:
        raise ValueError("policy.stablehlo calls code outside of StableHLO, and is not run")
    found = exported.call(*given(states).values())
    return Answer(*(np.asarray(found[name]) for name in Answer._fields))


FORMATS = {
    "numpy": Format(
        (MODULE,), None, None, _write_numpy, _run_numpy, "Python with NumPy alone, float32"
    ),
    "onnx": Format(
        ("policy.onnx",), "onnx", "onnx", _write_onnx, _run_onnx, f"opset {OPSET}, float32"
    ),
    "c": Format(("policy.h",), None, None, _write_c, _run_c, "C99, float32 and float64"),
    "stablehlo": Format(
        ("policy.stablehlo", "read_stablehlo.py"), "stablehlo", "flatbuffers", _write_stablehlo,
        _run_stablehlo, "jax.export, float32",
    ),
}  # fmt: skip


def check_formats(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the formats, each once; refuse unknown ones and those that cannot be written."""
    if not names:
        raise ValueError(f"name a format with --to: {', '.join(FORMATS)}")
    for name in names:
        if name not in FORMATS:
            hint, known = did_you_mean(name, FORMATS), closest_first(name, FORMATS)
            raise ValueError(f"there is no format {name!r}{hint}; there are {known}")
        needs, extra = FORMATS[name].needs, FORMATS[name].extra
        if needs is not None and importlib.util.find_spec(needs) is None:
            raise ValueError(
                f"the format {name} needs {needs}, which is not installed: pip install "
                f"'fat2thin[{extra}]'"
            )
    return tuple(dict.fromkeys(names))


def given(states: States) -> dict[str, ndarray]:
    """Return the inputs of a policy by name."""
    return {name: part for name, part in states._asdict().items() if part is not None}


_DRIVER = """#include <stddef.h>
#include "policy.h"

#define RUN(REAL) \\
  void run_##REAL(int rows, const REAL *observation, const REAL *uniform, const REAL *last, \\
                  REAL *numbers, int *codes) { \\
    for (int row = 0; row < rows; ++row) { \\
      policy_answer_##REAL answer; \\
      const REAL *before = last ? last + row * POLICY_ACTIONS : NULL; \\
      policy_decide_##REAL(observation + row * POLICY_OBSERVATIONS, \\
                           uniform + row * POLICY_ACTIONS, before, &answer); \\
      REAL *out = numbers + row * 4 * POLICY_ACTIONS; \\
      for (int i = 0; i < POLICY_ACTIONS; ++i) { \\
        out[i] = answer.action[i]; \\
        out[POLICY_ACTIONS + i] = answer.centre[i]; \\
        out[2 * POLICY_ACTIONS + i] = answer.low[i]; \\
        out[3 * POLICY_ACTIONS + i] = answer.high[i]; \\
      } \\
      codes[2 * row] = answer.refer; \\
      codes[2 * row + 1] = answer.reason; \\
    } \\
  }

RUN(float)
RUN(double)
"""


@contextlib.contextmanager
def compiled(header: bytes, *flags: str) -> Iterator[Any]:
    """Compile a header and yield the library; Unavailable without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("there is no C compiler (cc, gcc or clang)")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "policy.h").write_bytes(header)
        (here / "driver.c").write_text(_DRIVER)
        options = flags or ("-O2",)
        # Without contraction of products and sums, every machine computes the same numbers.
        command = [compiler, "-std=c99", "-ffp-contract=off", *options, "-shared", "-fPIC"]
        command += ["-o", "policy.so", "driver.c", "-lm"]
        found = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
        if found.returncode:
            raise ValueError(f"policy.h does not compile: {found.stderr.strip():.500}")
        yield ctypes.CDLL(str(here / "policy.so"))


def run_compiled(
    library: Any, states: States, contents: Contents, dtype: Any = np.float32
) -> Answer:
    """Return the answers of a compiled header."""
    rows, size = len(states.observation), len(contents.settings["actions"])
    numbers, codes = np.empty((rows, 4, size), dtype), np.empty((rows, 2), np.intc)
    inputs = [
        None if part is None else np.ascontiguousarray(part, dtype)
        for part in (states.observation, states.uniform, states.last)
    ]
    function = getattr(library, f"run_{'float' if dtype == np.float32 else 'double'}")
    addresses = (
        None if part is None else part.ctypes.data_as(ctypes.c_void_p)
        for part in (*inputs, numbers, codes)
    )
    function(ctypes.c_int(rows), *addresses)
    return Answer(*numbers.transpose(1, 0, 2), *codes.T)
