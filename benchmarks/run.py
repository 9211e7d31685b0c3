"""Measure the wall time of a whole `fat2thin train` by part, with a cold and a warm program cache.

    python benchmarks/run.py --steps 5000 --evaluate-every 1000
    python benchmarks/run.py --dataset treatment/cubic --seeds 10 --out run.json
    python benchmarks/run.py --task HalfCheetah-v5 --episodes 2       evaluation on the host

`fat2thin train` runs twice, each time in a new process and a new folder. The first run starts with
an empty cache of compiled programs, the second with the cache of the first. Without `--dataset` the
log is synthetic, with the sizes of HalfCheetah. Unknown arguments are passed to `fat2thin train`.

The parts are measured from outside: functions of the package are wrapped by a clock, and JAX
reports when it traced, lowered and compiled. Time is attributed to the innermost part, so the parts
add up to the time between the start and the end of the process:

    python       before the first line of this file, and after the last
    import       the package, including JAX
    data         reading, checking and hashing the log, and copying it to the device
    trace        JAX converts Python to programs for XLA; this is never cached
    compile      XLA compiles them, or JAX loads them from the cache; or that is waited for
    train        all chunks of updates
    evaluate     evaluating policies in JAX, or handing them to the evaluation on the host
    wait         waiting for evaluations on the host, which run in parallel, and their references
    references   reference policies of the treatment task, measured when the table is printed
    write        the run folder
    other        everything else

Each chunk is waited for, so nothing overlaps it and it may be slightly slower than in a normal run.
The time of other threads is listed below the parts and is not included in them.

Processor time (user and system, of all threads) is sampled every few milliseconds and attributed to
what the main thread did then. On a machine with other load it says more than wall time.
"""

import argparse
import functools
import json
import os
import resource
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
SAMPLED_EVERY = 0.003  # seconds between two samples of the processor time


class Span(NamedTuple):
    """The start and end of a part in a thread."""

    part: str
    start: float
    end: float
    thread: str
    program: str = ""


class Clock:
    """Records spans in seconds since 1970, the clock of JAX's events."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.processor = [(time.time(), time.process_time())]
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            time.sleep(SAMPLED_EVERY)
            self.processor.append((time.time(), time.process_time()))

    def keep(self, part: str, start: float, end: float, program: str = "") -> None:
        self.spans.append(Span(part, start, end, threading.current_thread().name, program))

    def on_processor(self, spans: list[Span]) -> list[Span]:
        """Return the spans in seconds of processor time of this process."""
        import numpy as np

        times, used = zip(*self.processor, (time.time(), time.process_time()), strict=True)
        return [
            span._replace(
                start=float(np.interp(span.start, times, used)),
                end=float(np.interp(span.end, times, used)),
            )
            for span in spans
        ]

    def timed(self, part: str, function: Callable, ready: Callable = lambda result: result) -> Any:
        """Return the function wrapped to record its time; `ready` waits for its result."""

        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            start = time.time()
            try:
                return ready(function(*arguments, **options))
            finally:
                self.keep(part, start, time.time())

        if hasattr(function, "lower"):  # a jitted function, which may be compiled ahead
            wrapped.lower = function.lower  # type: ignore[attr-defined]
        return wrapped

    def timed_iterator(self, part: str, function: Callable) -> Callable:
        """Return a generator function wrapped to record its time, without that of its consumer."""

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
    """Return the seconds of every part of one thread, without those of nested parts."""
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


def programs(clock: Clock) -> list[tuple[str, int, float, float]]:
    """Return name, number, wall and processor seconds of compiled programs, the longest first."""
    compiled = [span for span in clock.spans if span.part == "compile"]
    wall: Counter[str] = Counter()
    processor: Counter[str] = Counter()
    for seconds, spans in ((wall, compiled), (processor, clock.on_processor(compiled))):
        for span in spans:
            seconds[span.program] += span.end - span.start  # type: ignore[assignment]
    count = Counter(span.program for span in compiled)
    return [(name, count[name], wall[name], processor[name]) for name, _ in wall.most_common()]


def watch(clock: Clock) -> None:
    """Import what a run needs, and wrap the functions of every part."""
    import jax

    from fat2thin.cli import main as cli  # noqa: F401
    from fat2thin.engine import devices, loop
    from fat2thin.engine.pack import Pack
    from fat2thin.evaluation.returns import HostJudge, TreatmentEvaluator
    from fat2thin.runs.folder import RunFolder
    from fat2thin.training import evaluation_queue, runner
    from fat2thin.training.evaluation_queue import EvaluationQueue

    def compiled(event: str, start_time: float, end_time: float, **about: Any) -> None:
        if event in EVENTS:
            clock.keep(EVENTS[event], start_time, end_time, str(about.get("fun_name", "")))

    def hashed(logs: Any) -> Any:
        """Compute the cached hash, which a run needs right afterwards."""
        for log in (log for several in logs for log in several):
            log.dataset.sha256  # noqa: B018
        return logs

    def watched(judge: Any) -> Any:
        """Wrap evaluations on the host, which run in their own thread."""
        if isinstance(judge, HostJudge):
            wrap("evaluate", judge, "judge")
        return judge

    def wrap(part: str, owner: Any, *names: str, ready: Callable = jax.block_until_ready) -> None:
        for name in names:
            setattr(owner, name, clock.timed(part, getattr(owner, name), ready))

    jax.monitoring.register_event_time_span_listener(compiled)
    wrap("data", runner, "read_logs", ready=hashed)
    wrap("data", Pack, "data")
    wrap("train", loop, "chunk")
    wrap("compile", devices, "wait", ready=lambda result: result)
    wrap("evaluate", evaluation_queue, "evaluator", ready=watched)
    wrap("evaluate", EvaluationQueue, "evaluate")
    wrap("wait", EvaluationQueue, "references")
    timed = clock.timed_iterator("wait", EvaluationQueue.ready)
    setattr(EvaluationQueue, "ready", timed)  # noqa: B010
    wrap("references", TreatmentEvaluator, "references")
    writing = [name for name in vars(RunFolder) if name.startswith(("write_", "append_"))]
    wrap("write", RunFolder, "begin", *writing)


def child(report: Path, arguments: list[str]) -> None:
    """Run one command in this process, and write the time of every part."""
    start, clock = time.time(), Clock()
    clock.timed("import", watch)(clock)
    from fat2thin.cli import main as cli

    sys.argv = ["fat2thin", *arguments]
    clock.timed("other", cli.main)()
    import jax

    main = threading.main_thread().name
    beside = [span for span in clock.spans if span.thread != main]
    inside = [span for span in clock.spans if span.thread == main]
    content = {
        "start": start,
        "parts": own_seconds(inside),
        "processor": own_seconds(clock.on_processor(inside)),
        "programs": programs(clock),
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


def timed_process(command: list[str], cache: Path) -> tuple[float, float]:
    """Run a command with a folder for compiled programs; return wall and processor seconds."""
    environment = {
        **{key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"},
        "XDG_CACHE_HOME": str(cache),
    }
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    total, after = time.time() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if answer.returncode:
        raise RuntimeError(answer.stderr)
    return total, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path, name: str, arguments: list[str]) -> dict[str, Any]:
    """Run a command in a new process and return its times."""
    report, out = folder / f"{name}.json", folder / name
    command = [sys.executable, __file__, "--child", str(report), *arguments, "--out", str(out)]
    total, processor = timed_process(command, folder / "cache")
    found = json.loads(report.read_text())
    if not found["calls"].get("train"):
        raise RuntimeError("no chunk was recorded: update the wrapped functions in watch()")

    def complete(parts: dict[str, float], whole: float, python: float) -> dict[str, float]:
        parts = {part: parts.get(part, 0.0) for part in PARTS} | {"python": python}
        return parts | {"other": parts["other"] + whole - sum(parts.values())}

    # The end and the start of the process are "python"; its processor time includes both.
    python = total - (found["end"] - found["start"])
    outside = processor - sum(found["processor"].values())
    return {
        "total": total,
        "total_processor": processor,
        **found,
        "parts": complete(found["parts"], total, python),
        "processor": complete(found["processor"], processor, outside),
    }


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Return a table of seconds with one column per run."""
    lines = [f"| part | {' | '.join(f'{name}, s' for name in runs)} |", "|---" * 3 + "|"]

    def add(name: str, values: list[float]) -> None:
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} |")

    for part in PARTS:
        add(part, [run["parts"][part] for run in runs.values()])
    add("total", [run["total"] for run in runs.values()])
    for name in dict.fromkeys(name for run in runs.values() for name in run["beside"]):
        add(f"in parallel: {name}", [run["beside"].get(name, 0.0) for run in runs.values()])
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="fttpo")
    parser.add_argument("--dataset", help="name or file; default: a synthetic log")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the synthetic log")
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
            "--seeds", options.seeds, "--evaluate-every", str(options.evaluate_every),
            "--settings-from", "default", *further,
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
