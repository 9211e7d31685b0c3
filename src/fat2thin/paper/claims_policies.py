"""Claims about what policies look like: C4 to C9, C11, C15, C16, C25 and C26."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from fat2thin import data
from fat2thin.envs import treatment
from fat2thin.evaluation.statistics import Interval, seed_interval
from fat2thin.experiments.comparison import stopped
from fat2thin.paper.claims import Check, Claim, Evidence, Mode, Reproduced, above, number, weakest
from fat2thin.paper.policy_figures import first_action_returns
from fat2thin.paper.presets import CLIPPED, EXAMPLE, FTTPO, REWARDS, Method, method
from fat2thin.policies.policy import Policy
from fat2thin.random_streams import Stream, stream_key
from fat2thin.training import Run

STATES, DRAWS = 200, 500
"""Logged states that a policy is looked at in, and actions drawn in each."""
NARROW, DELTA, TRUNK = 0.5, 0.05, 0.95
"""Share of the box below which a band is narrow, and below which a policy is about a point mass;
central share of a proposal's mass that is its trunk."""
_TAILS = 100.0 * (1.0 - TRUNK) / 2.0, 100.0 - 100.0 * (1.0 - TRUNK) / 2.0

Measure = Callable[[Run, int], float]
"""Of the final policies of a run's seed."""
Rule = Callable[[Sequence[Interval]], tuple[bool | None, Interval]]
"""Whether values meet a limit, and the value that this depends on."""


def states(run: Run, seed: int) -> Float[np.ndarray, "states observation"]:
    """Logged states, evenly through the log."""
    own = data.reader(run.spec.dataset).one_a_seed
    observation = data.load(run.spec.dataset, seed if own else 0).observation
    return observation[:: max(1, len(observation) // STATES)][:STATES]


@jax.jit
def _draws(
    policy: Policy, observation: Float[Array, "states observation"]
) -> Float[Array, "draws states action"]:
    """Actions that a policy takes, in the box."""
    keys = jax.random.split(stream_key(0, Stream.FRESH_EVALUATION, 0), DRAWS)
    return jax.vmap(lambda key: policy.act(observation, key))(keys)


@jax.jit
def _unclipped(
    policy: Policy, observation: Float[Array, "states observation"]
) -> Float[Array, "draws states action"]:
    return policy(observation).sample(stream_key(0, Stream.FRESH_EVALUATION, 0), (DRAWS,))


def _support(policy: Policy, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = policy.support(jnp.asarray(observation))
    return np.asarray(low), np.asarray(high)


def support_width(policy: Policy, observation: np.ndarray) -> np.ndarray:
    """Mean width of what a policy can do as a share of the box, per coordinate."""
    low, high = _support(policy, observation)
    return np.mean((high - low) / np.asarray(policy.high - policy.low), axis=0)


def _share_outside(actions: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    drawn, low, high = np.asarray(actions), np.asarray(low), np.asarray(high)
    return float(np.mean((drawn < low) | (drawn > high)))


def _share_on_edge(policy: Policy, observation: np.ndarray) -> float:
    drawn = np.asarray(_draws(policy, observation))
    return float(np.mean((drawn <= np.asarray(policy.low)) | (drawn >= np.asarray(policy.high))))


def _width(run: Run, seed: int) -> float:
    """Mean width of the actor's support, as a share of the box."""
    return float(np.mean(support_width(run.policy(seed), states(run, seed))))


def _range(run: Run, seed: int) -> float:
    """The central range of the actions that a policy takes, as a share of the box."""
    policy = run.policy(seed)
    drawn = np.asarray(_draws(policy, states(run, seed)))
    low, high = np.percentile(drawn, _TAILS, axis=0)
    return float(np.mean((high - low) / np.asarray(policy.high - policy.low)))


def _in_trunk(run: Run, seed: int) -> float:
    """Share of states where the actor's support lies in the proposal's central mass."""
    observation = states(run, seed)
    low, high = _support(run.policy(seed), observation)
    drawn = np.asarray(_unclipped(run.proposal(seed), observation))
    from_, to = np.percentile(drawn, _TAILS, axis=0)
    # Where the band slides along the edge of the box its centre is not the proposal's.
    return float(np.mean(np.all((from_ <= low) & (high <= to), axis=-1)))


def _least_return(run: Run, seed: int) -> float:
    """The least mean return over first doses in the actor's band, or that of the nearest dose."""
    found = first_action_returns(run.policy(seed), treatment.by_name(run.spec.dataset))
    means = np.mean(found.returns, axis=-1)
    low, high = (float(end[0]) for end in run.policy(seed).support(found.observation))
    inside = (found.doses >= low) & (found.doses <= high)
    nearest = np.argmin(np.abs(found.doses - (low + high) / 2.0))
    return float(np.min(means[inside])) if inside.any() else float(means[nearest])


def _logged_inside(run: Run, seed: int) -> float:
    """Share of logged actions inside the actor's support."""
    log = data.load(run.spec.dataset, seed)
    low, high = _support(run.policy(seed), log.observation)
    return float(np.mean(np.all((low <= log.action) & (log.action <= high), axis=-1)))


def _on_edge(run: Run, seed: int) -> float:
    """Share of the actor's actions on the edge of the box."""
    return _share_on_edge(run.policy(seed), states(run, seed))


def _on_rewards(
    kept: Reproduced, mode: Mode, algorithm: str, measure: Measure, rewards: Sequence[str] = REWARDS
) -> tuple[list[Interval], int]:
    """A measure on each reward that was run, over the seeds that did not stop; the fewest seeds."""
    found = [kept.curve(f"treatment-{reward}", mode.method(algorithm)) for reward in rewards]
    runs = [run for run in found if run is not None]
    values = [
        [measure(run, seed) for seed in np.asarray(run.spec.seeds)[~stopped(run)].tolist()]
        for run in runs
    ]
    intervals = [seed_interval(np.asarray(of, np.float64)[:, None]) for of in values]
    return intervals, min((len(run.spec.seeds) for run in runs), default=0)


def _measured(
    algorithm: str, measure: Measure, rule: Rule, meaning: str, rewards: Sequence[str] = REWARDS
) -> Check:
    """A measure of an algorithm's policies meets a limit on every reward that was run."""

    def check(kept: Reproduced, mode: Mode) -> Evidence | None:
        values, seeds = _on_rewards(kept, mode, algorithm, measure, rewards)
        return Evidence(*rule(values), meaning, seeds) if values else None

    return check


def _below(limit: float) -> Rule:
    def rule(values: Sequence[Interval]) -> tuple[bool | None, Interval]:
        left = [Interval(limit - value, limit - high, limit - low) for value, low, high in values]
        return above(left), _largest(values)

    return rule


def _above(limit: float) -> Rule:
    def rule(values: Sequence[Interval]) -> tuple[bool | None, Interval]:
        return above([Interval(*(end - limit for end in one)) for one in values]), weakest(values)

    return rule


def _at_most(limit: float) -> Rule:
    """By the values alone, without their intervals."""
    return lambda values: (_largest(values).value <= limit, _largest(values))


def _largest(values: Sequence[Interval]) -> Interval:
    return max(values, key=lambda one: one.value)


def wide_baselines(kept: Reproduced, mode: Mode) -> Evidence | None:
    """IQL and XQL are wider than the actor of FtTPO."""
    ours, seeds = _on_rewards(kept, mode, "fttpo", _range)
    theirs = [_on_rewards(kept, mode, name, _range)[0] for name in ("iql", "xql")]
    if not ours or any(len(widths) != len(ours) for widths in theirs):
        return None
    gaps = [
        Interval(their.value - our.value, their.low - our.high, their.high - our.low)
        for widths in theirs
        for their, our in zip(widths, ours, strict=True)
    ]
    return Evidence(
        above(gaps), weakest(gaps),
        "central 95 % of the actions of IQL and XQL less that of FtTPO, the smallest, as a share "
        "of the box; above 0", seeds,
    )  # fmt: skip


def _evolved(
    folder: str, methods: Sequence[Method], look: Callable[[Sequence[Run]], Evidence]
) -> Check:
    """What `look` finds in those of some evolutions of one seed that were run."""

    def check(kept: Reproduced, mode: Mode) -> Evidence | None:
        runs = [run for one in methods if (run := kept.evolution(folder, one)) is not None]
        return look(runs) if runs else None

    return check


def _widths(run: Run) -> list[np.ndarray]:
    """Widths of the actor's support before and after, per coordinate."""
    seed, steps = run.spec.seeds[0], run.spec.snapshots
    observation = states(run, seed)
    return [support_width(run.policy(seed, step), observation) for step in (steps[0], steps[-1])]


def _shrinks(runs: Sequence[Run]) -> Evidence:
    (run,) = runs
    seed, last = run.spec.seeds[0], run.spec.snapshots[-1]
    before, after = (float(np.mean(widths)) for widths in _widths(run))
    low, high = _support(run.policy(seed, last), states(run, seed))
    outside = _share_outside(_unclipped(run.proposal(seed, last), states(run, seed)), low, high)
    return Evidence(
        after < before and outside > 0.05, number(after / before),
        f"width of the actor's support after {last} updates against before; below 1, while the "
        f"proposal keeps mass outside of it ({outside:.0%})", 1,
    )  # fmt: skip


def _beyond_the_box(runs: Sequence[Run]) -> Evidence:
    looked_at = [(run.policy(run.spec.seeds[0], run.spec.snapshots[-1]), run) for run in runs]
    share = max(
        _share_outside(_unclipped(policy, states(run, run.spec.seeds[0])), policy.low, policy.high)
        for policy, run in looked_at
    )
    return Evidence(
        share > 0.05, number(share),
        "largest share of a baseline's actions beyond the box [−1, 1]: the picture shows the "
        "Gaussian before it is squashed; above 0.05", 1,
    )  # fmt: skip


def _concentrates(runs: Sequence[Run]) -> Evidence:
    (run,) = runs
    before, after = _widths(run)
    return Evidence(
        bool(np.all(after < before)), number(float(np.max(after / before))),
        f"width of the support after {run.spec.snapshots[-1]:,} updates against before, of the "
        "coordinate where it fell least; below 1", 1,
    )  # fmt: skip


def _piles_up(runs: Sequence[Run]) -> Evidence:
    (run,) = runs
    seed, last = run.spec.seeds[0], run.spec.snapshots[-1]
    share = _share_on_edge(run.policy(seed, last), states(run, seed))
    return Evidence(
        share > 0.5, number(share),
        "share of the actions of IQL with a clipped Gaussian that lie on the edge of the box, "
        f"over coordinates, after {last:,} updates; above 0.5", 1,
    )  # fmt: skip


CLAIMS = (
    Claim("C4", "FtTPO's final policy is narrow, with a compact support (treatment).", "fig2",
          _measured("fttpo", _width, _below(NARROW), "mean width of the actor's support as a share "
                    f"of the box, on the reward where it is wider; below {NARROW}")),
    Claim("C5", "SQL's final policy is about a point mass (treatment).", "fig2",
          _measured("sql", _range, _below(DELTA),
                    f"central 95 % of SQL's actions as a share of the box; below {DELTA}")),
    Claim("C6", "The final policies of IQL and XQL are wide (treatment).", "fig2", wide_baselines),
    Claim("C7", "The actor's support lies in the proposal's central trunk and is zero outside.",
          "fig2", _measured("fttpo", _in_trunk, _above(0.9), "share of states where the actor's "
                            "support lies in the central 95 % of the proposal; above 0.9")),
    Claim("C8", "In 400 updates the actor's width shrinks while the proposal keeps its tails.",
          "fig3", _evolved("treatment-quadratic", [FTTPO], _shrinks), both_modes=False),
    Claim("C9", "Baselines spread over [−2, 2] (treatment, whose box is [−1, 1]).", "fig3",
          _evolved("treatment-quadratic", [method(name) for name in ("iql", "xql", "sql")],
                   _beyond_the_box), both_modes=False),
    Claim("C11", "The policy concentrates by removing its tails in every dimension "
          "(halfcheetah-medium-expert).", "fig5", _evolved(EXAMPLE, [FTTPO], _concentrates),
          both_modes=False),
    Claim("C15", "Clipping puts most of a Gaussian's mass on the boundary "
          "(halfcheetah-medium-expert).", "fig7",
          _evolved(f"{EXAMPLE}-clipped", CLIPPED[1:], _piles_up), both_modes=False),
    Claim("C16", "The return stays positive over the actor's support (treatment).", "fig7",
          _measured("fttpo", _least_return, _above(0.0), "least mean return of 50 steps over first "
                    "doses in the actor's band (treatment/quadratic); above 0", ("quadratic",))),
    Claim("C25", "Logged actions fall outside of the thin policy: a likelihood of most is zero.",
          "fig2", _measured("fttpo", _logged_inside, _below(0.5),
                            "share of logged doses inside the actor's support; below 0.5")),
    Claim("C26", "No sampled action of the actor is clipped to the boundary.", "fig2",
          _measured("fttpo", _on_edge, _at_most(1e-3), "share of the actor's sampled doses on the "
                    "edge of the box; at most 0.001")),
)  # fmt: skip
