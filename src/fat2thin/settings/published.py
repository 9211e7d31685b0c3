"""Hyper-parameters that papers and their code used, each with its source: `published.toml`.

published_settings("iql", "d4rl/hopper-medium-v2", "own").values
"""

import dataclasses
import functools
import importlib.resources
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from fat2thin import algorithms

ORIGINS = ("own", "fttpo")
"""The method's own paper or repository, and the runs of the FtTPO paper."""
EVERY_FAMILY = "*"

_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True)
class Record:
    """One entry of the file; its head explains the fields."""

    algorithm: str
    origin: str
    datasets: tuple[str, ...]
    values: dict[str, Any]
    source: str
    policy: str | None = None
    batch_size: int | None = None
    caveat: str | None = None

    def fits(self, dataset: str) -> bool:
        """Whether the record is about this data set."""
        return self.names(dataset) or any(
            dataset.startswith(name[:-1]) for name in self.datasets if name.endswith("*")
        )

    def names(self, dataset: str) -> bool:
        """Whether it gives the data set's full name."""
        return dataset in self.datasets

    @property
    def completes(self) -> bool:
        """Whether it holds for every family of policies, and so never stands alone."""
        return self.policy == EVERY_FAMILY

    def level(self, dataset: str) -> tuple[bool, bool]:
        """How specific it is: of two records that differ, the one with the higher level holds."""
        return not self.completes, self.names(dataset)


@dataclasses.dataclass(frozen=True)
class Found:
    """What is published for an algorithm on a data set."""

    values: dict[str, Any]
    """Fields of the algorithm's config."""
    batch_size: int | None
    sources: tuple[str, ...]
    caveats: tuple[str, ...]


def published_settings(
    algorithm: str, dataset: str, origin: str, policy: str | None = None
) -> Found:
    """The published settings, with their sources; a ValueError says what there is instead.

    `policy` is the family of policies, where one is chosen by name.
    """
    if origin not in ORIGINS:
        raise ValueError(f"origin must be one of {', '.join(map(repr, ORIGINS))}, got {origin!r}")
    about = [record for record in records() if record.algorithm == algorithm]
    fitting = [record for record in about if record.origin == origin and record.fits(dataset)]
    chosen = _of_family(fitting, algorithm, policy)
    if not chosen:
        raise ValueError(
            f"no settings of {algorithm}{f' with policy={policy!r}' if policy else ''} on "
            f"{dataset!r} are known from {origin!r}; {_what_there_is(about, algorithm)}"
        )
    chosen = sorted(chosen, key=lambda record: record.level(dataset))
    sizes = [record.batch_size for record in chosen if record.batch_size is not None]
    return Found(
        values={name: value for record in chosen for name, value in record.values.items()},
        batch_size=sizes[-1] if sizes else None,
        sources=_distinct(record.source for record in chosen),
        caveats=_distinct(record.caveat for record in chosen if record.caveat),
    )


def origins(algorithm: str, dataset: str) -> tuple[str, ...]:
    """Where settings of an algorithm on a data set are known from."""
    known = {
        record.origin
        for record in records()
        if record.algorithm == algorithm and record.fits(dataset) and not record.completes
    }
    return tuple(origin for origin in ORIGINS if origin in known)


def families(algorithm: str, dataset: str, origin: str) -> tuple[str | None, ...]:
    """The families of policies that settings are known for; None where none has to be chosen."""
    return _distinct(
        record.policy
        for record in records()
        if (record.algorithm, record.origin) == (algorithm, origin)
        and record.fits(dataset)
        and not record.completes
    )


@functools.cache
def records() -> tuple[Record, ...]:
    """All of `published.toml`, in its order."""
    file = importlib.resources.files("fat2thin.settings") / "published.toml"
    return parse(file.read_text(encoding="utf-8"))


def parse(text: str) -> tuple[Record, ...]:
    """The records of a text in the form of `published.toml`."""
    entries = tomllib.loads(text)["settings"]
    return tuple(Record(**{**entry, "datasets": tuple(entry["datasets"])}) for entry in entries)


def _of_family(fitting: Sequence[Record], algorithm: str, policy: str | None) -> list[Record]:
    """The records for a family, and those that complete them; none if only the latter are there."""
    unnamed = [record for record in fitting if record.policy is None]
    chosen = [record for record in fitting if policy is not None and record.policy == policy]
    if policy is None or policy == _family(unnamed, algorithm):
        chosen += unnamed
    return [*(record for record in fitting if record.completes), *chosen] if chosen else []


def _family(unnamed: Iterable[Record], algorithm: str) -> str | None:
    """The family that records without one are about: what their values say, or the default."""
    named = [record.values["policy"] for record in unnamed if "policy" in record.values]
    return named[-1] if named else getattr(algorithms.get(algorithm).config(), "policy", None)


def _what_there_is(about: Sequence[Record], algorithm: str) -> str:
    standing = [record for record in about if not record.completes]
    if not standing:
        others = _distinct(record.algorithm for record in records())
        return f"there are none of {algorithm}, but some of {', '.join(sorted(others))}"
    return "there are: " + "; ".join(
        _listed([record for record in standing if record.origin == origin])
        for origin in _distinct(record.origin for record in standing)
    )


def _listed(alike: Sequence[Record]) -> str:
    names = sorted({name for record in alike for name in record.datasets})
    policies = _distinct(record.policy for record in alike if record.policy)
    also = f" (also with policy {', '.join(policies)})" if policies else ""
    return f"{alike[0].origin!r} on {', '.join(names)}{also}"


def _distinct(items: Iterable[_Item]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(items))
