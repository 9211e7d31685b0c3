"""Claims about what policies look like: C4 to C9, C11, C15, C16, C25 and C26."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fat2thin import data
from fat2thin.envs import treatment
from fat2thin.evaluation.statistics import Interval, seed_interval
from fat2thin.paper.claims import Claim, Finding, Kept, Mode, above, number, weakest
from fat2thin.paper.first_actions import first_action_returns
from fat2thin.paper.presets import CLIPPED, EXAMPLE, REWARDS
from fat2thin.policies.policy import Policy
from fat2thin.random_streams import Stream, stream_key
from fat2thin.training import Run

STATES, DRAWS = 200, 500
"""Logged states that a policy is looked at in, and actions drawn in each."""
NARROW, DELTA, TRUNK = 0.5, 0.05, 0.95
"""A band is narrow below this share of the box, a policy about a point mass below that one, and the
trunk of a proposal is this central share of its mass."""


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


def _box(policy: Policy) -> np.ndarray:
    return np.asarray(policy.high - policy.low)


def central_width(policy: Policy, observation: np.ndarray, share: float = TRUNK) -> float:
    """The central range of the actions a policy takes, as a share of the box."""
    tail = 100.0 * (1.0 - share) / 2.0
    low, high = np.percentile(np.asarray(_draws(policy, observation)), [tail, 100.0 - tail], axis=0)
    return float(np.mean((high - low) / _box(policy)))


def support_width(policy: Policy, observation: np.ndarray) -> np.ndarray:
    """Mean width of what a policy can do, as a share of the box, a coordinate each."""
    low, high = _support(policy, observation)
    return np.mean((high - low) / _box(policy), axis=0)


def _of_seeds(run: Run, measure: Callable[[int], float]) -> Interval:
    """A measure of the final policies, over the seeds that did not stop."""
    stopped = run.about.get("stopped", {})
    values = [measure(seed) for seed in run.spec.seeds if str(seed) not in stopped]
    return seed_interval(np.asarray(values, np.float64)[:, None])


def _on_rewards(
    kept: Kept, mode: Mode, algorithm: str, measure: Callable[[Run, int], float]
) -> list[Interval]:
    """A measure of one method on each reward that was run."""
    runs = [kept.curve(f"treatment-{reward}", mode.method(algorithm)) for reward in REWARDS]
    return [_of_seeds(run, functools.partial(measure, run)) for run in runs if run is not None]


def _actor_width(run: Run, seed: int) -> float:
    return float(np.mean(support_width(run.policy(seed), states(run, seed))))


def _range(run: Run, seed: int) -> float:
    return central_width(run.policy(seed), states(run, seed))


def _below(values: Sequence[Interval], limit: float) -> bool | None:
    return above([Interval(limit - one.value, limit - one.high, limit - one.low) for one in values])


def _seeds(kept: Kept, mode: Mode, algorithm: str) -> int:
    runs = [kept.curve(f"treatment-{reward}", mode.method(algorithm)) for reward in REWARDS]
    return min(len(run.spec.seeds) for run in runs if run is not None)


def narrow(kept: Kept, mode: Mode) -> Finding | None:
    """The actor's support is a narrow part of the box."""
    widths = _on_rewards(kept, mode, "fttpo", _actor_width)
    if not widths:
        return None
    return Finding(
        _below(widths, NARROW), max(widths, key=lambda one: one.value),
        f"mean width of the actor's support as a share of the box, on the reward where it is "
        f"wider; below {NARROW}", _seeds(kept, mode, "fttpo"),
    )  # fmt: skip


def about_delta(kept: Kept, mode: Mode) -> Finding | None:
    """SQL's policy is about a point mass."""
    widths = _on_rewards(kept, mode, "sql", _range)
    if not widths:
        return None
    return Finding(
        _below(widths, DELTA), max(widths, key=lambda one: one.value),
        f"central 95 % of SQL's actions as a share of the box; below {DELTA}",
        _seeds(kept, mode, "sql"),
    )  # fmt: skip


def wide_baselines(kept: Kept, mode: Mode) -> Finding | None:
    """IQL and XQL are wider than the actor of FtTPO."""
    ours = _on_rewards(kept, mode, "fttpo", _range)
    theirs = [_on_rewards(kept, mode, name, _range) for name in ("iql", "xql")]
    if not ours or any(len(widths) != len(ours) for widths in theirs):
        return None
    gaps = [
        Interval(their.value - our.value, their.low - our.high, their.high - our.low)
        for widths in theirs
        for their, our in zip(widths, ours, strict=True)
    ]
    return Finding(
        above(gaps), weakest(gaps),
        "central 95 % of the actions of IQL and XQL less that of FtTPO, the smallest, as a share "
        "of the box; above 0", _seeds(kept, mode, "fttpo"),
    )  # fmt: skip


def _in_trunk(run: Run, seed: int) -> float:
    """Share of states where the actor's support lies in the proposal's central mass."""
    observation = states(run, seed)
    low, high = _support(run.policy(seed), observation)
    tail = 100.0 * (1.0 - TRUNK) / 2.0
    drawn = np.asarray(_unclipped(run.proposal(seed), observation))
    from_, to = np.percentile(drawn, [tail, 100.0 - tail], axis=0)
    # Where the band slides along the edge of the box its centre is not the proposal's.
    return float(np.mean(np.all((from_ <= low) & (high <= to), axis=-1)))


def inside_trunk(kept: Kept, mode: Mode) -> Finding | None:
    """The actor lives in the trunk of the proposal and is zero outside."""
    shares = _on_rewards(kept, mode, "fttpo", _in_trunk)
    if not shares:
        return None
    least = min(shares, key=lambda one: one.value)
    return Finding(
        above([Interval(*(end - 0.9 for end in one)) for one in shares]), least,
        "share of states where the actor's support lies in the central 95 % of the proposal; "
        "above 0.9", _seeds(kept, mode, "fttpo"),
    )  # fmt: skip


def shrinks(kept: Kept, mode: Mode) -> Finding | None:
    """The actor's width falls over 400 updates while the proposal keeps mass outside of it."""
    run = None if mode.published else kept.evolution("treatment-quadratic", mode.method("fttpo"))
    if run is None:
        return None
    seed, (first, last) = run.spec.seeds[0], (run.spec.snapshots[0], run.spec.snapshots[-1])
    observation = states(run, seed)
    widths = [
        float(np.mean(support_width(run.policy(seed, step), observation))) for step in (first, last)
    ]
    low, high = (
        np.asarray(end) for end in run.policy(seed, last).support(jnp.asarray(observation))
    )
    drawn = np.asarray(_unclipped(run.proposal(seed, last), observation))
    outside = float(np.mean((drawn < low) | (drawn > high)))
    return Finding(
        widths[1] < widths[0] and outside > 0.05, number(widths[1] / widths[0]),
        f"width of the actor's support after {last} updates against before; below 1, while the "
        f"proposal keeps mass outside of it ({outside:.0%})", 1,
    )  # fmt: skip


def beyond_the_box(kept: Kept, mode: Mode) -> Finding | None:
    """Baselines put mass beyond the box, as the paper's picture has it."""
    runs = [
        kept.evolution("treatment-quadratic", mode.method(name)) for name in ("iql", "xql", "sql")
    ]
    known = [run for run in runs if run is not None]
    if not known or mode.published:
        return None
    shares = []
    for run in known:
        policy = run.policy(run.spec.seeds[0], run.spec.snapshots[-1])
        drawn = np.asarray(_unclipped(policy, states(run, run.spec.seeds[0])))
        low, high = np.asarray(policy.low), np.asarray(policy.high)
        shares.append(np.mean((drawn < low) | (drawn > high)))
    return Finding(
        bool(max(shares) > 0.05), number(float(max(shares))),
        "largest share of a baseline's actions beyond the box [−1, 1]: the picture shows the "
        "Gaussian before it is squashed; above 0.05", 1,
    )  # fmt: skip


def concentrates(kept: Kept, mode: Mode) -> Finding | None:
    """Every coordinate's band gets narrower."""
    run = None if mode.published else kept.evolution(EXAMPLE, mode.method("fttpo"))
    if run is None:
        return None
    seed, steps = run.spec.seeds[0], run.spec.snapshots
    observation = states(run, seed)
    first, last = (
        support_width(run.policy(seed, step), observation) for step in (steps[0], steps[-1])
    )
    return Finding(
        bool(np.all(last < first)), number(float(np.max(last / first))),
        f"width of the support after {steps[-1]:,} updates against before, of the coordinate where "
        "it fell least; below 1", 1,
    )  # fmt: skip


def piles_up(kept: Kept, mode: Mode) -> Finding | None:
    """A clipped Gaussian puts most of its mass on the edge of the box."""
    run = None if mode.published else kept.evolution(f"{EXAMPLE}-clipped", CLIPPED[1])
    if run is None:
        return None
    seed = run.spec.seeds[0]
    policy = run.policy(seed, run.spec.snapshots[-1])
    drawn = np.asarray(_draws(policy, states(run, seed)))
    low, high = np.asarray(policy.low), np.asarray(policy.high)
    share = float(np.mean((drawn <= low) | (drawn >= high)))
    return Finding(
        share > 0.5, number(share),
        f"share of the actions of IQL with a clipped Gaussian that lie on the edge of the box, "
        f"over coordinates, after {run.spec.snapshots[-1]:,} updates; above 0.5", 1,
    )  # fmt: skip


def positive_returns(kept: Kept, mode: Mode) -> Finding | None:
    """Whatever first dose of the actor's band is given, the return stays positive."""
    run = kept.curve("treatment-quadratic", mode.method("fttpo"))
    if run is None:
        return None

    def least(seed: int) -> float:
        found = first_action_returns(run.policy(seed), treatment.by_name(run.spec.dataset))
        means = np.mean(found.returns, axis=-1)
        low, high = (float(end[0]) for end in run.policy(seed).support(found.observation))
        inside = (found.doses >= low) & (found.doses <= high)
        nearest = np.argmin(np.abs(found.doses - (low + high) / 2.0))
        return float(np.min(means[inside])) if inside.any() else float(means[nearest])

    effect = _of_seeds(run, least)
    return Finding(
        above([effect]), effect,
        "least mean return of 50 steps over first doses in the actor's band (treatment/quadratic); "
        "above 0", len(run.spec.seeds),
    )  # fmt: skip


def _logged_inside(run: Run, seed: int) -> float:
    log = data.load(run.spec.dataset, seed)
    low, high = _support(run.policy(seed), log.observation)
    return float(np.mean(np.all((low <= log.action) & (log.action <= high), axis=-1)))


def few_logged_inside(kept: Kept, mode: Mode) -> Finding | None:
    """Most logged actions lie outside of the actor's support."""
    shares = _on_rewards(kept, mode, "fttpo", _logged_inside)
    if not shares:
        return None
    return Finding(
        _below(shares, 0.5), max(shares, key=lambda one: one.value),
        "share of logged doses inside the actor's support; below 0.5", _seeds(kept, mode, "fttpo"),
    )  # fmt: skip


def _on_edge(run: Run, seed: int) -> float:
    policy = run.policy(seed)
    drawn = np.asarray(_draws(policy, states(run, seed)))
    return float(np.mean((drawn <= policy.low) | (drawn >= policy.high)))


def none_on_the_edge(kept: Kept, mode: Mode) -> Finding | None:
    """The actor is not clipped: no sampled dose lies on the edge of the box."""
    shares = _on_rewards(kept, mode, "fttpo", _on_edge)
    if not shares:
        return None
    worst = max(shares, key=lambda one: one.value)
    return Finding(
        worst.value <= 1e-3, worst,
        "share of the actor's sampled doses on the edge of the box; at most 0.001",
        _seeds(kept, mode, "fttpo"),
    )  # fmt: skip


CLAIMS = (
    Claim("C4", "FtTPO's final policy is narrow, with a compact support (treatment).", "fig2",
          narrow),
    Claim("C5", "SQL's final policy is about a point mass (treatment).", "fig2", about_delta),
    Claim("C6", "The final policies of IQL and XQL are wide (treatment).", "fig2", wide_baselines),
    Claim("C7", "The actor's support lies in the proposal's central trunk and is zero outside.",
          "fig2", inside_trunk),
    Claim("C8", "In 400 updates the actor's width shrinks while the proposal keeps its tails.",
          "fig3", shrinks, both_modes=False),
    Claim("C9", "Baselines spread over [−2, 2] (treatment, whose box is [−1, 1]).", "fig3",
          beyond_the_box, both_modes=False),
    Claim("C11", "The policy concentrates by removing its tails in every dimension "
          "(halfcheetah-medium-expert).", "fig5", concentrates, both_modes=False),
    Claim("C15", "Clipping puts most of a Gaussian's mass on the boundary "
          "(halfcheetah-medium-expert).", "fig7", piles_up, both_modes=False),
    Claim("C16", "The return stays positive over the actor's support (treatment).", "fig7",
          positive_returns),
    Claim("C25", "Logged actions fall outside of the thin policy: a likelihood of most is zero.",
          "fig2", few_logged_inside),
    Claim("C26", "No sampled action of the actor is clipped to the boundary.", "fig2",
          none_on_the_edge),
)  # fmt: skip
