"""The logs that runs learn from, read from where their names say."""

from collections.abc import Sequence

from fat2thin import data
from fat2thin.data.operations import learned_and_held_out
from fat2thin.data.scaling import find_scales
from fat2thin.engine.pack import LoadedLog
from fat2thin.settings.spec import RunSpec


def read_logs(specs: Sequence[RunSpec]) -> list[tuple[LoadedLog, ...]]:
    """The logs of each run: one, or one a seed. A log that several runs use is read once."""
    read: dict[tuple, LoadedLog] = {}

    def log(spec: RunSpec, seed: int) -> LoadedLog:
        key = (spec.dataset, seed, spec.standardise, spec.reward_scale, spec.holdout)
        if key not in read:
            dataset = data.load(spec.dataset, seed)
            learned, held_out = learned_and_held_out(dataset, spec.holdout, seed)
            scales = find_scales(learned, spec.standardise, spec.reward_scale)
            read[key] = LoadedLog(dataset, scales, learned, held_out)
        return read[key]

    def seeds(spec: RunSpec) -> tuple[int, ...]:
        return spec.seeds if data.reader(spec.dataset).one_a_seed else (0,)

    return [tuple(log(spec, seed) for seed in seeds(spec)) for spec in specs]
