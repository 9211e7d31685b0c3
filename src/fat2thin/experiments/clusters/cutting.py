"""Cut programs into packs: one per worker, each as full as its device allows."""

import heapq
import math
from collections.abc import Sequence

import numpy as np

from fat2thin.engine.devices import jobs_that_fit
from fat2thin.engine.pack import make_pack
from fat2thin.experiments.plan import Pack
from fat2thin.runs.identity import read_logs


def cut(packs: Sequence[Pack], workers: int, memory: float | None = None) -> list[Pack]:
    """Return packs for this number of workers, the longest first.

    The program with the most updates per pack is cut until every worker has a pack. With `memory`,
    the bytes of the smallest device, no pack has more jobs than fit into it, unless it is one run.
    """
    parts = [_parts_that_fit(pack, memory) for pack in packs]
    longest = [(-pack.updates / parts[i], i) for i, pack in enumerate(packs)]
    heapq.heapify(longest)
    while longest and sum(parts) < workers:
        _, i = heapq.heappop(longest)
        if parts[i] < len(packs[i].runs):
            parts[i] += 1
            heapq.heappush(longest, (-packs[i].updates / parts[i], i))
    made = [part for pack, count in zip(packs, parts, strict=True) for part in _split(pack, count)]
    return sorted(made, key=lambda pack: -pack.updates)


def _parts_that_fit(pack: Pack, memory: float | None) -> int:
    if memory is None:
        return 1
    specs = [one.spec for one in pack.runs]
    whole = make_pack(specs, read_logs(specs), pack.traced)
    fit = jobs_that_fit(whole.program, whole.jobs, whole.data_size, memory)
    return min(len(specs), math.ceil(len(whole.jobs.seed) / fit))


def _split(pack: Pack, count: int) -> list[Pack]:
    places = np.array_split(np.arange(len(pack.runs)), count)
    return [pack._replace(runs=tuple(pack.runs[i] for i in several)) for several in places]
