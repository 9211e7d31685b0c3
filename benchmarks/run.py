"""Wall time of a whole run as a user starts it, by part, without and with compiled programs kept.

    python benchmarks/run.py --steps 5000 --evaluate-every 1000
    python benchmarks/run.py --dataset treatment/cubic --seeds 10 --out run.json
    python benchmarks/run.py --task HalfCheetah-v5 --episodes 2       judged on the host

`fat2thin train` runs twice, each time in a process of its own and into a folder of its own. The
first run finds an empty folder of compiled programs, the second what the first has left there. The
log is made up, of the widths of HalfCheetah, or named. Arguments that are not known here go to
`fat2thin train`.

The parts are measured from outside: functions of the package are wrapped by a clock, and JAX itself
tells when it traced, lowered and compiled. A moment belongs to the innermost part that it is in, so
the parts add up to the time between the start of the process and its end:

    python       until the first line of this file is run, and after the last
    import       the package, with JAX
    data         read, checked, hashed, and put on the device
    trace        JAX turns Python into a program for XLA, whatever it is for; nothing of it is kept
    compile      XLA compiles it, or JAX finds what was kept
    train        every chunk of updates
    evaluate     policies are judged in JAX, or handed to those who judge them on the host
    wait         for evaluations on the host, which play beside training, and for their references
    references   what a treatment is compared with, measured when the table is printed
    write        the run folder
    other        everything else

A chunk is waited for, so nothing that the run could do meanwhile overlaps it: it may be slightly
slower here. What other threads did beside the parts is listed below them, and is in none.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PARTS = (
    "python", "import", "data", "trace", "compile", "train", "evaluate", "wait", "references",
    "write", "other",
)  # fmt: skip
RUNS = ("first run", "second run")
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "trace",
    "/jax/core/compile/backend_compile_duration": "compile",
}


class Span(NamedTuple):
    """A part from one moment to another, in a thread."""

    part: str
    start: float
    end: float
    thread: str


class Clock:
    """What was going on when, in seconds since 1970, as JAX counts them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def keep(self, part: str, start: float, end: float) -> None:
        self.spans.append(Span(part, start, end, threading.current_thread().name))

    def timed(self, part: str, function: Callable, ready: Callable = lambda result: result) -> Any:
        """The function, with the clock running; `ready` waits for its result."""

        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            start = time.time()
            try:
                return ready(function(*arguments, **options))
            finally:
                self.keep(part, start, time.time())

        return wrapped

    def timed_iterator(self, part: str, function: Callable) -> Callable:
        """The same for what is yielded one by one: what happens in between does not count."""

        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Iterator[Any]:
            following = self.timed(part, functools.partial(next, function(*arguments, **options)))
            try:
                while True:
                    yield following()
            except StopIteration:
                return

        return wrapped


def own_seconds(spans: list[Span]) -> dict[str, float]:
    """Seconds of every part of one thread, without those of the parts inside it."""
    seconds: dict[str, float] = defaultdict(float)
    around: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        while around and around[-1].end <= span.start:
            around.pop()
        seconds[span.part] += span.end - span.start
        if around:
            seconds[around[-1].part] -= span.end - span.start
        around.append(span)
    return dict(seconds)


def watch(clock: Clock) -> None:
    """Import what a run needs, and let the clock run wherever a part begins."""
    import jax

    from fat2thin.cli import main as cli  # noqa: F401
    from fat2thin.engine import loop
    from fat2thin.engine.pack import Pack
    from fat2thin.evaluation.returns import HostJudge, TreatmentEvaluator
    from fat2thin.runs.folder import RunFolder
    from fat2thin.training import evaluation_queue
    from fat2thin.training import train as run
    from fat2thin.training.evaluation_queue import EvaluationQueue

    def compiled(event: str, start_time: float, end_time: float, **_: Any) -> None:
        if event in EVENTS:
            clock.keep(EVENTS[event], start_time, end_time)

    def hashed(logs: Any) -> Any:
        """Runs ask for the hash right afterwards; it is computed once."""
        for log in (log for several in logs for log in several):
            log.dataset.sha256  # noqa: B018
        return logs

    def watched(judge: Any) -> Any:
        """Whoever judges on the host does so in a thread of their own."""
        if isinstance(judge, HostJudge):
            wrap("evaluate", judge, "judge")
        return judge

    def wrap(part: str, owner: Any, *names: str, ready: Callable = jax.block_until_ready) -> None:
        for name in names:
            setattr(owner, name, clock.timed(part, getattr(owner, name), ready))

    jax.monitoring.register_event_time_span_listener(compiled)
    wrap("data", run, "read_logs", ready=hashed)
    wrap("data", Pack, "data")
    wrap("train", loop, "chunk")
    wrap("evaluate", evaluation_queue, "evaluator", ready=watched)
    wrap("evaluate", EvaluationQueue, "evaluate")
    wrap("wait", EvaluationQueue, "references")
    timed = clock.timed_iterator("wait", EvaluationQueue.ready)
    setattr(EvaluationQueue, "ready", timed)  # noqa: B010
    wrap("references", TreatmentEvaluator, "references")
    writing = [name for name in vars(RunFolder) if name.startswith(("write_", "append_"))]
    wrap("write", RunFolder, "begin", *writing)


def child(report: Path, arguments: list[str]) -> None:
    """Run one command here, and write what every part of it took."""
    start, clock = time.time(), Clock()
    clock.timed("import", watch)(clock)
    from fat2thin.cli import main as cli

    sys.argv = ["fat2thin", *arguments]
    clock.timed("other", cli.main)()
    import jax

    main = threading.main_thread().name
    beside = [span for span in clock.spans if span.thread != main]
    content = {
        "start": start,
        "parts": own_seconds([span for span in clock.spans if span.thread == main]),
        "beside": {
            f"{part}, in thread {thread}": seconds
            for thread in sorted({span.thread for span in beside})
            for part, seconds in own_seconds([s for s in beside if s.thread == thread]).items()
        },
        "calls": Counter(span.part for span in clock.spans),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "end": time.time(),
    }
    report.write_text(json.dumps(content))


def measure(folder: Path, name: str, arguments: list[str]) -> dict[str, Any]:
    """The run of a command in a process of its own."""
    report, out = folder / f"{name}.json", folder / name
    environment = {
        **{key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"},
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    command = [sys.executable, __file__, "--child", str(report), *arguments, "--out", str(out)]
    start = time.time()
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    total = time.time() - start
    if answer.returncode:
        raise RuntimeError(answer.stderr)
    found = json.loads(report.read_text())
    if not found["calls"].get("train"):
        raise RuntimeError("no chunk was seen: the package trains in another way than this knows")
    parts = {part: found["parts"].get(part, 0.0) for part in PARTS}
    parts["python"] = total - (found["end"] - found["start"])
    parts["other"] += total - sum(parts.values())
    return {"total": total, **found, "parts": parts}


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Seconds, a column a run."""
    lines = [f"| part | {' | '.join(f'{name}, s' for name in runs)} |", "|---" * 3 + "|"]

    def add(name: str, values: list[float]) -> None:
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} |")

    for part in PARTS:
        add(part, [run["parts"][part] for run in runs.values()])
    add("total", [run["total"] for run in runs.values()])
    for name in dict.fromkeys(name for run in runs.values() for name in run["beside"]):
        add(f"beside: {name}", [run["beside"].get(name, 0.0) for run in runs.values()])
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="fttpo")
    parser.add_argument("--dataset", help="name or file; a made-up log without")
    parser.add_argument("--rows", type=int, default=100_000, help="of the made-up log")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--evaluate-every", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="JSON file")
    options, further = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        dataset = options.dataset or str(folder / "log.npz")
        if not options.dataset:
            import update
            from fat2thin.data.formats.npz import save_npz

            save_npz(update.log(options.rows), dataset)
        arguments = [
            "train", options.algorithm, dataset, "--steps", str(options.steps),
            "--seeds", options.seeds, "--evaluate-every", str(options.evaluate_every), *further,
        ]  # fmt: skip
        runs = {name: measure(folder, name.replace(" ", "_"), arguments) for name in RUNS}
    first = runs[RUNS[0]]
    print(f"{first['device']}, JAX {first['jax']}: fat2thin {' '.join(arguments)}\n")
    print(table(runs))
    if options.out:
        options.out.write_text(json.dumps({"arguments": arguments, "runs": runs}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
