"""Measure the time of one decision by an exported policy, for one state and for 10,000.

    taskset -c 0 python benchmarks/export.py                       a table of microseconds per call
    taskset -c 0 python benchmarks/export.py --out docs/results/export_cpu.json

The policy has 8 observations, one action and networks of 64 × 64, with referral by the summary of a
treatment log, alone and as the consensus of 5 seeds. All formats decide on the same states, in
turns of some calls each, so that other load affects all; `taskset` gives them one core. JAX stands
beside them: the same computation in one compiled program, `policy.act`, and `policy.decide`, which
checks and explains. C decides on one state 1,000 times per call, since calling it from Python takes
longer than deciding. Every call is waited for and timed by itself. The first calls, which compile,
are not among them.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import onnxruntime

from fat2thin import atomic_files, data
from fat2thin.data.coverage import summarise_states
from fat2thin.export.contents import Contents, States, contents_of
from fat2thin.export.formats import FORMATS, compiled, given, run_compiled
from fat2thin.policies.decision import with_referral
from fat2thin.policies.ensemble import ensemble_of
from fat2thin.policies.families import Sparse
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.plain import plain_policy
from fat2thin.policies.policy import Policy, unit_policy
from fat2thin.tables import Table

MANY, SEEDS = 10_000, 5
CALLS = {1: (100, 20), MANY: (20, 3)}
"""Turns, and calls of each format in a turn, by the number of states."""
REPEATED = 1000


def make_policy(seeds: int) -> Policy:
    """Return an untrained policy of one seed, or of several."""
    log = data.load("treatment/quadratic", seed=0)

    def one(seed: int) -> Policy:
        # Nearly alike, as seeds of one run are.
        network = PolicyNetwork(jax.random.key(0), 8, 1, (64, 64))
        draw = np.random.default_rng(seed)
        network = jax.tree.map(
            lambda leaf: leaf + jnp.asarray(draw.normal(0.0, 0.01, leaf.shape), leaf.dtype), network
        )
        return unit_policy(network, Sparse(), (0.02, 0.3)).on_raw(jnp.zeros(8), jnp.ones(8))

    policies = [one(seed) for seed in range(seeds)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
    return with_referral(policies[0] if seeds == 1 else ensemble_of(stacked), summarise_states(log))


def calls_of(
    policy: Policy, contents: Contents, states: States, library: Any
) -> dict[str, Callable[[], Any]]:
    """Return a call per format, and those of JAX."""
    in_numpy, files = contents.policy(), dict[str, bytes]()
    for name in ("onnx", "stablehlo"):
        files |= FORMATS[name].write(contents, {})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        files["policy.onnx"], options, providers=["CPUExecutionProvider"]
    )
    feed = given(states)
    whole = jax.jit(jax.export.deserialize(bytearray(files["policy.stablehlo"])).call)
    key = jax.random.key(0)
    if len(states.observation) == 1:
        observation, uniform = (part.repeat(REPEATED, axis=0) for part in states[:2])
        repeated = States(observation, uniform, None)
    else:
        repeated = states
    return {
        "numpy": lambda: in_numpy(*states),
        "onnx": lambda: session.run(None, feed),
        "c": lambda: run_compiled(library, repeated, contents),
        "stablehlo in JAX, compiled": lambda: whole(*feed.values()),
        "JAX: policy.act": lambda: policy.act(states.observation, key),
        "JAX: policy.decide": lambda: policy.decide(states.observation, key),
    }


def measured(calls: dict[str, Callable[[], Any]], rows: int) -> list[dict[str, Any]]:
    """Return microseconds per call: the median, and the fastest tenth."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    turns, several = CALLS[rows]
    for _ in range(turns):
        for name, call in calls.items():
            for _ in range(several):
                began = time.perf_counter()
                jax.block_until_ready(call())
                spent = 1e6 * (time.perf_counter() - began)
                taken[name].append(spent / REPEATED if (name, rows) == ("c", 1) else spent)
    return [
        {
            "format": name, "states": rows, "median": float(np.median(each)),
            "fastest_tenth": float(np.quantile(each, 0.1)),
        }
        for name, each in taken.items()
    ]  # fmt: skip


def shown_number(microseconds: float) -> str:
    """Return a time in words of a table."""
    return f"{microseconds:,.0f}" if microseconds >= 100 else f"{microseconds:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    draw = np.random.default_rng(0)
    for seeds in (1, SEEDS):
        policy = make_policy(seeds)
        contents = contents_of(plain_policy(policy))
        with compiled(FORMATS["c"].write(contents, {})["policy.h"]) as library:
            for rows in CALLS:
                seen = draw.normal(size=(rows, 8)).astype(np.float32)
                states = States(seen, draw.uniform(size=(rows, 1)).astype(np.float32), None)
                lines = measured(calls_of(policy, contents, states, library), rows)
                found += [{"seeds": seeds, **line} for line in lines]
    shown = []
    for seeds in (1, SEEDS):
        for name in dict.fromkeys(line["format"] for line in found):
            row: dict[str, Any] = {"seeds": str(seeds), "format": name}
            for line in found:
                if (line["seeds"], line["format"]) == (seeds, name):
                    many = f"{line['states']:,} state{'s' * (line['states'] > 1)}"
                    row[f"{many}: median, µs"] = shown_number(line["median"])
                    row[f"{many}: fastest tenth"] = shown_number(line["fastest_tenth"])
            shown.append(row)
    print(Table("", tuple(shown)).text(120))
    if options.out is not None:
        versions = {
            "jax": jax.__version__, "numpy": np.__version__, "onnxruntime": onnxruntime.__version__,
        }  # fmt: skip
        calls = {str(rows): turns * several for rows, (turns, several) in CALLS.items()}
        saved = {"versions": versions, "calls": calls, "rows": found}
        atomic_files.write(options.out, json.dumps(saved, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
