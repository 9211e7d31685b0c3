"""Make the dossier of a run: answer every question within a time budget, judge, write."""

import dataclasses
import hashlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fat2thin import __version__
from fat2thin.evaluation.held_out import check_fits
from fat2thin.policies.plain import NotPlainError, plain_policy
from fat2thin.report.dossier import behaviour, bounds, provenance, referrals, worth
from fat2thin.report.dossier.answer import QUESTIONS, Answer, plain_numbers
from fat2thin.report.dossier.influence import Influence, measure_influence
from fat2thin.report.dossier.interactive import typed_policy
from fat2thin.report.dossier.page import save_page
from fat2thin.report.dossier.subject import Subject, open_subject
from fat2thin.report.dossier.twin import write_twin
from fat2thin.report.dossier.verdict import Finding, judge, verdict
from fat2thin.runs.dossier_file import DOSSIER, is_dossier, run_hash
from fat2thin.runs.result import Run, load
from fat2thin.safety.certificate_file import save_certificate
from fat2thin.safety.certify import Certificate

MINUTES = 5.0
"""Time that a dossier takes at most by default, on two cores and for a log of 100,000 rows."""
CERTIFYING = 1.0 / 3.0  # of the time that is left when the certificate begins; the rest is value's
WRITING = 2.0  # seconds that are kept to write page and twin
MOST_TYPED = 60  # columns of a patient that can be typed
_STEPS = 7  # parts that the progress counts


Begin = Callable[[str, int, int], None]
"""Called when a part begins, with its name, the number of parts done, and of all."""


@dataclasses.dataclass(frozen=True)
class Dossier:
    """A dossier that was written."""

    page: Path
    twin: Path
    verdict: str
    findings: tuple[Finding, ...]
    answers: tuple[Answer, ...]
    sha256: str
    """Of the twin; the page and later exports name it."""
    seconds: float


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked of a dossier."""

    folder: Path
    log: str | None = None
    limits: Path | None = None
    against: tuple[Path, ...] = ()
    minutes: float = MINUTES
    show_cases: bool = False

    def command(self) -> str:
        """Return the command that makes it again."""
        words = ["fat2thin", "dossier", str(self.folder)]
        words += ["--log", self.log] if self.log else []
        words += ["--limits", str(self.limits)] if self.limits else []
        words += ["--against", *map(str, self.against)] if self.against else []
        words += [f"--minutes={self.minutes:g}"] if self.minutes != MINUTES else []
        words += ["--show-cases"] if self.show_cases else []
        return shlex.join(words)


class _Clock:
    """Counts parts, and the time that is left."""

    def __init__(self, minutes: float, begin: Begin | None) -> None:
        self._began, self._seconds = time.perf_counter(), 60.0 * minutes
        self._begin, self._done = begin, 0
        self.parts: dict[str, float] = {}

    @property
    def left(self) -> float:
        """Seconds that are left of the budget."""
        return self._seconds - (time.perf_counter() - self._began)

    @property
    def passed(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._began

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Show and time a part."""
        if self._begin is not None:
            self._begin(name, self._done, _STEPS)
        began = time.perf_counter()
        yield
        self.parts[name] = time.perf_counter() - began
        self._done += 1


def make_dossier(
    run: Run, request: Request, out: Path | None = None, begin: Begin | None = None
) -> Dossier:
    """Make the dossier of a run in a folder, and write its page and its JSON twin."""
    if run.folder is None:
        raise ValueError("a dossier needs a run in a folder: train with out=...")
    if not request.minutes > 0:
        raise ValueError(f"minutes must be above 0, got {request.minutes:g}")
    page = out or run.folder / Path(DOSSIER).with_suffix(".html")
    twin = page.with_suffix(".json")
    refuse_existing(page, twin)
    page.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(page.parent, os.W_OK):
        raise ValueError(f"{page.parent} cannot be written to; choose another file with --out")
    clock = _Clock(request.minutes, begin)
    with clock.part("reading run and log"):
        subject = open_subject(run, request.log, request.limits)
        for path in request.against:
            check_fits(load(path), subject.judged)  # before any work
    hashes = _hashes(subject)
    influence, answers, proof = _answers(subject, request, clock, hashes)
    facts = {place: answer.facts for place, answer in enumerate(answers, start=1)}
    findings = judge(facts)
    certificate = twin.with_name(f"{twin.stem}.certificate.json")
    where = os.path.relpath(run.folder, twin.parent)
    if proof is not None:
        save_certificate(proof, certificate, {"folder": where, "seed": None, "ensemble": None})
        hashes["certificate"] = hashlib.sha256(certificate.read_bytes()).hexdigest()
    content = {
        "title": f"Dossier: {run.spec.algorithm} on {subject.name}",
        "version": __version__,
        "command": request.command(),
        "run": where,
        "log": subject.given or run.spec.dataset,
        "certificate": None if proof is None else certificate.name,
        "hashes": hashes,
        "weight_hash": hashes["weights"],
        "verdict": verdict(findings),
        "findings": [one._asdict() for one in findings],
        "answers": [
            {"question": question, **answer.to_json()}
            for question, answer in zip(QUESTIONS, answers, strict=True)
        ],
        "seconds": plain_numbers({name: round(one, 1) for name, one in clock.parts.items()}),
        "budget_minutes": request.minutes,
    }
    digest = write_twin(twin, content)
    typed = typed_policy(subject, influence.most(MOST_TYPED))
    save_page(page, content, typed, digest)
    found = content["verdict"]
    return Dossier(page, twin, str(found), tuple(findings), tuple(answers), digest, clock.passed)


def refuse_existing(page: Path, twin: Path) -> None:
    """Raise a ValueError if a file that is not of a dossier would be replaced."""
    if page.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{page}: a dossier is written as .html, with a .json beside it")
    if page.is_dir():
        raise ValueError(f"{page} is a folder; give a file, such as {page / 'dossier.html'}")
    if page.exists() and not is_dossier(twin):
        raise ValueError(f"{page} exists and is not the page of a dossier; choose another file")
    if twin.exists() and not is_dossier(twin):
        raise ValueError(f"{twin} exists and is not the twin of a dossier; choose another file")


class _Found(NamedTuple):
    influence: Influence
    answers: list[Answer]
    certificate: Certificate | None


def _answers(
    subject: Subject, request: Request, clock: _Clock, hashes: Mapping[str, str | None]
) -> _Found:
    """Return the columns that matter most, the answers to all questions, and the certificate."""
    run, folder = subject.run, shlex.quote(str(request.folder))
    with clock.part("asking the policy in every judged state"):
        _ = subject.bands
    with clock.part("finding the columns that matter most"):
        influence = measure_influence(subject)
        doing = behaviour.describe(subject, influence)
    with clock.part("limits and referrals"):
        obeying = bounds.limits(subject)
        refusing = referrals.refusals(subject, influence, request.show_cases)
        agreeing = referrals.agreement(subject)
    commands = [provenance.training_command(run, str(request.folder)), request.command()]
    with clock.part("checking the log"):
        made = provenance.origin(subject, hashes, commands)
    with clock.part("certificate"):
        again = f"echo '[box]' > box.toml && fat2thin certify {folder} box.toml"
        again += f" --limits {shlex.quote(str(request.limits))}" if request.limits else ""
        largest, proof = bounds.largest_dose(
            subject, influence, doing.facts, clock.left * CERTIFYING, again
        )
    with clock.part("values"):
        words = ["fat2thin", "value", str(request.folder)]
        words += [request.log] if request.log else []
        words += ["--against", *map(str, request.against)] if request.against else []
        words += ["--limits", str(request.limits)] if request.limits else []
        left = clock.left - WRITING
        value = worth.worth(subject, request.limits, request.against, left, shlex.join(words))
    answers = [doing, largest, obeying, value, refusing, agreeing, made]
    return _Found(influence, [*answers, _doubts(subject, answers)], proof)


def _doubts(subject: Subject, answers: Sequence[Answer]) -> Answer:
    missing = [one for answer in answers for one in answer.not_run]
    assumptions = [text for answer in answers for text in answer.facts.get("assumptions", ())]
    found = answers[-1].tables.get("log_check")
    of_log = [f"in the log, {row['finding']}" for row in found.rows] if found else []
    return provenance.doubts(subject, assumptions, missing, of_log)


def _hashes(subject: Subject) -> dict[str, str | None]:
    run = subject.run
    assert run.folder is not None
    try:
        plain = plain_policy(subject.policy)
        policy, weights = plain.policy_hash, plain.weight_hash
    except NotPlainError:
        policy = weights = ""
    log = subject.log.sha256
    return {"run": run_hash(run.folder), "policy": policy, "weights": weights, "log": log}
