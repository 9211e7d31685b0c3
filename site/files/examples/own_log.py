"""Learn a policy from a log of your own and check it on episodes it has not seen; no simulator.

    python examples/own_log.py                            the made-up doses beside this file
    python examples/own_log.py doses.csv                  a table, explained by doses.toml
    python examples/own_log.py train.npz --validation validation.npz --out runs/own

Any file that `fat2thin.data.load` reads will do. Where there is no validation file, a fifth of the
log is held out, by episodes. docs/guides/own_log.md explains every number that is printed.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import fat2thin
from fat2thin import algorithms, data
from fat2thin.data.checks import check
from fat2thin.data.operations import split
from fat2thin.data.summary import summarise
from fat2thin.evaluation.held_out import validate
from fat2thin.evaluation.table import Table
from fat2thin.report.log_figures import save_log_figures
from fat2thin.settings.small_logs import AUTO, DEFAULT, resolve

SETTINGS = {
    "hidden": (64, 64),
    # Q is full after some 1 / ((1 - discount) * polyak_rate) updates. At a discount of 0.99 that
    # is 2,000 with this rate, and would be 20,000 with the default one.
    "polyak_rate": 0.05,
}
"""Where the algorithm has them; `fat2thin settings fttpo` lists the others."""


def arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    example = Path(__file__).with_name("own_log.toml")
    parser.add_argument("log", nargs="?", default=str(example), help="file to learn from")
    parser.add_argument("--validation", help="file to check on; else a fifth of the log")
    parser.add_argument("--out", type=Path, help="folder for results; runs/ and the log's name")
    parser.add_argument("--algorithm", default="fttpo", help="see `fat2thin algorithms`")
    parser.add_argument("--steps", type=int, default=10_000, help="updates a seed")
    parser.add_argument("--seeds", type=int, default=4, help="policies learned side by side")
    asked = parser.parse_args()
    asked.out = asked.out or Path("runs") / Path(asked.log).stem
    return asked


def parts(log: data.Dataset, asked: argparse.Namespace) -> tuple[str, data.Dataset]:
    """Name of what to learn from, and what to check on."""
    if asked.validation:
        return asked.log, data.load(asked.validation)
    # Training takes a name, so the larger part becomes a file.
    training, validation = split(log, share=0.8, seed=0)
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / f"training-{training.sha256[:8]}.npz"
    data.save_npz(training, file)
    return str(file), validation


def verdict(table: Table) -> str:
    """What a committee asks for first, on held-out steps and on those that were learned from."""
    sentences = {
        "logged_inside_support": "share of logged actions that the policy could have taken",
        "support_percent": "width of what it can do, in per cent of the action box",
        "td_error": "error of one step of the values, in units of the reward",
        "weighted_log_likelihood": "log-likelihood of logged actions, weighted as in training",
    }
    found = {row["quantity"]: row for row in table}
    return "\n".join(
        f"{sentence}: {found[name]['validation']:.3g} held out, {found[name]['training']:.3g} seen"
        for name, sentence in sentences.items()
        if name in found
    )


def main() -> None:
    """Look at the log, learn from it, check what was learned, and draw it."""
    asked = arguments()

    log = data.load(asked.log)
    report = check(log)
    print(summarise(log), report, sep="\n\n")
    if report.errors:
        sys.exit("The log has errors: nothing is learned from it.")

    name, validation = parts(log, asked)
    known = {field.name for field in dataclasses.fields(algorithms.get(asked.algorithm).config)}
    settings = {setting: value for setting, value in SETTINGS.items() if setting in known}
    # A small log has settings of its own, which these must not undo.
    usual = resolve(AUTO, asked.algorithm, name) == DEFAULT
    run = fat2thin.train(
        asked.algorithm,
        name,
        steps=asked.steps,
        seeds=asked.seeds,
        out=asked.out / asked.algorithm,
        standardise=True,
        **(settings if usual else {}),
    )

    table = validate(run, validation, training=data.load(name))
    print("", table, "", verdict(table), "", sep="\n")
    for picture in save_log_figures(run, validation, asked.out / asked.algorithm):
        print(picture)


if __name__ == "__main__":
    main()
