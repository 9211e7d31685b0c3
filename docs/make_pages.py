"""Generate the tables of settings, metrics and scores in the algorithm pages, and of run options.

    python docs/make_pages.py            write the tables between the markers of every page
    python docs/make_pages.py --check    only list the pages that are out of date

Settings come from the docstrings of the configs, metrics from the algorithms, and scores from
docs/results/treatment_methods.json.
"""

import json
import sys
from pathlib import Path

import numpy as np

from fat2thin import algorithms
from fat2thin.algorithms import Algorithm
from fat2thin.algorithms.configs import CriticConfig, LearningConfig, PolicyConfig
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.settings.options import RunOptions, explain

PAGES = Path(__file__).parent / "algorithms"
OPTIONS = PAGES.parent / "guides" / "training.md"
RESULTS = Path(__file__).parent / "results" / "treatment_methods.json"
COMMAND = "python benchmarks/treatment_methods.py"


def settings_table(algorithm: Algorithm) -> str:
    rows = [f"| `{name}` | {shown(default)} | {text} |" for name, default, text in own(algorithm)]
    return "\n".join(["| setting | default | what it does |", "|---|---|---|", *rows])


def shown(default: object) -> str:
    return f"`{default:g}`" if isinstance(default, float) else f"`{default!r}`"


def own(algorithm: Algorithm) -> list[tuple]:
    """Return the settings that are not shared by all algorithms; the index page has the others."""
    shared = {(name, default) for name, default, _ in explain(LearningConfig)}
    shared |= {(name, default) for name, default, _ in explain(CriticConfig)}
    shared |= {(name, default) for name, default, _ in explain(PolicyConfig)}
    return [row for row in explain(algorithm.config) if row[:2] not in shared]


def shared_table() -> str:
    rows = {row[0]: row for config in (LearningConfig, CriticConfig, PolicyConfig)
            for row in explain(config)}  # fmt: skip
    lines = [f"| `{name}` | {shown(default)} | {text} |" for name, default, text in rows.values()]
    return "\n".join(["| setting | default | what it does |", "|---|---|---|", *lines])


def options_table() -> str:
    rows = [
        f"| `{name}` | {shown(default)} | {text} |" for name, default, text in explain(RunOptions)
    ]
    return "\n".join(["| option | default | what it does |", "|---|---|---|", *rows])


def metrics_table(algorithm: Algorithm) -> str:
    rows = [f"| `{name}` | {what} | {look} |" for name, (what, look) in algorithm.metrics.items()]
    return "\n".join(["| metric | what it is | what to look for |", "|---|---|---|", *rows])


def scores_table(algorithm: Algorithm) -> str:
    """Return the rows of the algorithm and its variants in the treatment comparison."""
    content = json.loads(RESULTS.read_text())
    wanted = [algorithm.name, *(name for name in algorithms.names()
                                if algorithms.get(name).variant_of == algorithm.name)]  # fmt: skip
    lines = [
        "| method | reward | sampled | at its centre | dose variance |",
        "|---|---|---|---|---|",
    ]
    for method in content["methods"]:
        if method["algorithm"] in wanted:
            cells = [interval(method["final"][way]["returns"]) for way in ("sampled", "centre")]
            variance = np.mean(method["final"]["sampled"]["dose_variance"])
            lines.append(
                f"| {method['label']} | {method['reward']} | {cells[0]} | {cells[1]} "
                f"| {variance:.3f} |"
            )
    return "\n".join([*lines, "", f"From `{COMMAND}`; see [results](../results/index.md)."])


def interval(of_seeds: list[float]) -> str:
    found = seed_interval(np.asarray(of_seeds)[:, None])
    return f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]"


def index_table() -> str:
    rows = []
    for name in algorithms.names():
        algorithm = algorithms.get(name)
        page = algorithm.variant_of or name
        rows.append(f"| [`{name}`]({page}.md) | {algorithm.summary} |")
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


def fill(text: str, block: str, content: str) -> str:
    start, end = f"<!-- {block} -->", f"<!-- end of {block} -->"
    before, found, rest = text.partition(start)
    if not found:
        return text
    after = rest.partition(end)[2]
    return f"{before}{start}\n\n{content}\n\n{end}{after}"


def written(page: Path) -> str:
    text = page.read_text()
    if page == OPTIONS:
        return fill(text, "options", options_table())
    if page.stem == "index":
        return fill(fill(text, "algorithms", index_table()), "shared settings", shared_table())
    algorithm = algorithms.get(page.stem)
    text = fill(text, "settings", settings_table(algorithm))
    text = fill(text, "metrics", metrics_table(algorithm))
    return fill(text, "scores", scores_table(algorithm)) if RESULTS.exists() else text


def main() -> None:
    stale = []
    for page in [OPTIONS, *sorted(PAGES.glob("*.md"))]:
        text = written(page)
        if text != page.read_text():
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(text)
    print("\n".join(stale) or "all pages are up to date")
    if "--check" in sys.argv and stale:
        sys.exit("run python docs/make_pages.py")


if __name__ == "__main__":
    main()
