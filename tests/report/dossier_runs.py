"""Runs in folders for tests of the dossier, trained for two updates, and their log as a file."""

import numpy as np

import fat2thin

TOML = """episode = "patient"
observation = ["severity", "weight", "lactate"]
action = "dose"
reward = "gain"
action_low = 0
action_high = 2
discount = 0.9
end = "death"

[columns.severity]
unit = "points"

[columns.weight]
unit = "kg"

[columns.lactate]
log = 0.1

[columns.dose]
unit = "mg"
"""
LIMITS = '[limits]\ncap = "dose <= 0.8 when severity > 2"\nfloor = "dose >= 0.1"\n'
STRANGE = "</script><img src=x onerror='document.title=1'>.csv"


def write_log(folder, name="doses.csv", episodes=60, steps=8, seed=0):
    """Write a made-up log of doses as a table, and return its path."""
    draw = np.random.default_rng(seed)
    lines = ["patient,severity,weight,lactate,dose,gain,death"]
    for patient in range(episodes):
        weight, severity = draw.normal(70, 10), draw.uniform(0, 4)
        for step in range(steps):
            dose = np.clip(0.4 * severity + draw.normal(0, 0.4), 0, 2)
            gain = 1 - (dose - 0.3 * severity) ** 2 + draw.normal(0, 0.1)
            ended = int(step == steps - 1 and draw.uniform() < 0.3)
            numbers = severity, weight, draw.lognormal(0.5, 0.4), dose, gain
            lines.append(",".join([str(patient), *(f"{one:.5f}" for one in numbers), str(ended)]))
            severity = np.clip(severity + draw.normal(0, 0.4), 0, 4)
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    path.with_suffix(".toml").write_text(TOML)
    return path


def short_run(folder, log=None, **options):
    """Train for two updates on a log, into a folder below, and return the run as it is loaded."""
    log = write_log(folder) if log is None else log
    options = {"steps": 2, "settings_from": "default", "hidden": (4,), "seeds": 3, **options}
    fat2thin.train("fttpo", str(log), out=folder / "run", holdout=0.4, standardise=True, **options)
    return fat2thin.load(folder / "run")
