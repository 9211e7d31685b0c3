"""Train a policy on your own log and validate it on held-out episodes, without a simulator.

    python examples/own_log.py                            the made-up doses in this folder
    python examples/own_log.py doses.csv                  a table, described by doses.toml
    python examples/own_log.py train.npz --validation validation.npz --out runs/own

The log can be any file that `fat2thin.data.load` reads. Without a validation file, a fifth of the
episodes is held out. docs/guides/own_log.md explains every number that is printed.
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
from fat2thin.settings.automatic import AUTO, CLEAR, SMALL, resolve

SETTINGS = {
    "hidden": (64, 64),
    # Q converges after about 1 / ((1 - discount) * polyak_rate) updates. At a discount of 0.99 that
    # is 2,000 with this rate, and 20,000 with the default.
    "polyak_rate": 0.05,
}
"""Used if the algorithm has them; `fat2thin settings fttpo` lists the others."""


def arguments() -> argparse.Namespace:
    """Return the command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    example = Path(__file__).with_name("own_log.toml")
    parser.add_argument("log", nargs="?", default=str(example), help="log to train on")
    parser.add_argument("--validation", help="log to validate on; default: a fifth of the log")
    parser.add_argument(
        "--out", type=Path, help="folder for results; default: runs/ and the name of the log"
    )
    parser.add_argument("--algorithm", default="fttpo", help="see `fat2thin algorithms`")
    parser.add_argument("--steps", type=int, default=10_000, help="updates per seed")
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds")
    asked = parser.parse_args()
    asked.out = asked.out or Path("runs") / Path(asked.log).stem
    return asked


def parts(log: data.Dataset, asked: argparse.Namespace) -> tuple[data.Dataset, data.Dataset]:
    """Return the training log and the validation log."""
    if asked.validation:
        return log, data.load(asked.validation)
    if log.episode_start.size < 2:
        sys.exit(
            f"{log.name} has one episode, so none can be held out: give another log with "
            "--validation, or name the column of the episodes."
        )
    return split(log, share=0.8, seed=0)


def verdict(table: Table) -> str:
    """Return the most important numbers, on held-out steps and on training steps."""
    sentences = {
        "logged_inside_support": "share of logged actions that the policy could have taken",
        "support_percent": "width of the policy's support, in per cent of the action box",
        "td_error": "one-step TD error of the values, in units of the reward",
        "weighted_log_likelihood": "log-likelihood of logged actions, weighted as in training",
    }
    found = {row["quantity"]: row for row in table}
    return "\n".join(
        f"{sentence}: {found[name]['validation']:.3g} held out, {found[name]['training']:.3g} seen"
        for name, sentence in sentences.items()
        if name in found
    )


def main() -> None:
    """Check the log, train on it, validate the policy, and draw it."""
    asked = arguments()

    log = data.load(asked.log)
    report = check(log)
    print(summarise(log), report, sep="\n\n")
    if report.errors:
        sys.exit("The log has errors: correct them before training.")

    training, validation = parts(log, asked)
    known = {field.name for field in dataclasses.fields(algorithms.get(asked.algorithm).config)}
    settings = {setting: value for setting, value in SETTINGS.items() if setting in known}
    # Do not override the settings for small logs.
    kind = resolve(AUTO, asked.algorithm, data.remember(training))
    chosen = {} if kind in (SMALL, CLEAR) else {**settings, "settings_from": "default"}
    run = fat2thin.train(
        asked.algorithm,
        asked.log if training is log else training,
        steps=asked.steps,
        seeds=asked.seeds,
        out=asked.out / asked.algorithm,
        standardise=True,
        **chosen,
    )

    table = validate(run, validation, training=training)
    print("", table, "", verdict(table), "", sep="\n")
    for picture in save_log_figures(run, validation, asked.out / asked.algorithm):
        print(picture)


if __name__ == "__main__":
    main()
