"""Evaluations during training: tasks in JAX at once, others on the host, in parallel."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from fat2thin.algorithms.base import State
from fat2thin.engine.devices import JobScheduler
from fat2thin.engine.pack import Pack
from fat2thin.engine.program import take
from fat2thin.evaluation.returns import (
    Evaluation,
    HostJudge,
    Judge,
    Reference,
    TreatmentEvaluator,
    evaluator,
)
from fat2thin.policies.policy import Policy
from fat2thin.random_streams import Stream, stream_keys
from fat2thin.settings.spec import RunSpec


class _Group(NamedTuple):
    """Runs that are evaluated together, and the places of their jobs."""

    judge: Judge
    runs: list[int]
    jobs: np.ndarray


class _Result(NamedTuple):
    """The evaluation of a group's runs after a step, ready now or later."""

    step: int
    group: _Group
    found: Future[dict[str, Evaluation]]


class EvaluationQueue:
    """Evaluates the runs of a pack, and holds the results that have not been collected."""

    def __init__(self, specs: Sequence[RunSpec], pack: Pack, scheduler: JobScheduler) -> None:
        self._pack, self._scheduler, self._episodes = pack, scheduler, specs[0].episodes
        self._groups = _groups(specs, pack)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation")
        self._results: list[_Result] = []
        self._references: dict[int, dict[str, Reference]] = {}

    def evaluate(self, step: int, states: State, policies: Callable[[], dict[str, Policy]]) -> None:
        """Evaluate the policies of all runs; results of tasks on the host are ready later."""
        for group in self._groups:
            result: Future[dict[str, Evaluation]]
            if isinstance(group.judge, HostJudge):
                of_group = jax.device_get(take(policies(), group.jobs))
                keys = stream_keys(self._pack.jobs.seed[group.jobs], Stream.EVALUATION, step)
                result = self._thread.submit(group.judge.judge, of_group, keys, self._episodes)
            else:
                found = self._scheduler.evaluate(
                    states, group.jobs, step,
                    stream=Stream.EVALUATION, evaluator=group.judge, episodes=self._episodes,
                )  # fmt: skip
                result = Future()
                result.set_result(jax.device_get(found))
            self._results.append(_Result(step, group, result))

    def ready(self, wait: bool = False) -> Iterator[tuple[int, dict[int, dict[str, Evaluation]]]]:
        """Yield step and evaluations by run, in order: those ready or, with `wait`, all."""
        while self._results and (wait or self._results[0].found.done()):
            step, group, result = self._results.pop(0)
            found, runs = result.result(), np.asarray(self._pack.jobs.run)[group.jobs]
            yield step, {run: take(found, np.flatnonzero(runs == run)) for run in group.runs}

    @property
    def busy(self) -> bool:
        """Whether a result is not ready yet."""
        return any(not result.found.done() for result in self._results)

    def references(self, run: int) -> dict[str, Reference] | None:
        """Return the references of a run on the host, measured once per group of runs.

        None for tasks in JAX: theirs are measured on demand.
        """
        for number, group in enumerate(self._groups):
            if run in group.runs and isinstance(group.judge, HostJudge):
                if number not in self._references:
                    self._references[number] = group.judge.references()
                return self._references[number]
        return None

    def speed(self, run: int) -> dict[str, Any] | None:
        """Return the environment steps on the host for a run's group, and steps per second."""
        for group in self._groups:
            if run in group.runs and isinstance(group.judge, HostJudge) and group.judge.steps:
                pace = group.judge.steps / max(group.judge.seconds, 1e-9)
                return {"steps": group.judge.steps, "steps_a_second": round(pace, 1)}
        return None

    def close(self) -> None:
        """Close the environments; pending evaluations are cancelled."""
        for group in self._groups:
            if isinstance(group.judge, HostJudge):
                group.judge.close()
        self._thread.shutdown(cancel_futures=True)


def _groups(specs: Sequence[RunSpec], pack: Pack) -> list[_Group]:
    problem, of_jobs = pack.program.problem, np.asarray(pack.jobs.run)
    together: list[tuple[Judge, list[int]]] = []
    for run, spec in enumerate(specs):
        judge = evaluator(spec.dataset, spec.task)
        if judge is None:
            continue
        if isinstance(judge, HostJudge | TreatmentEvaluator):
            judge.check(problem.observation_size, problem.action_low, problem.action_high)
        alike = next((runs for other, runs in together if other == judge), None)
        if alike is None:
            together.append((judge, [run]))
        else:
            alike.append(run)
    return [_Group(judge, runs, np.flatnonzero(np.isin(of_jobs, runs))) for judge, runs in together]
