"""Hyper-parameters of papers and their code, each with its source; read from `published.toml`.

Examples:
    >>> published_settings("iql", "d4rl/hopper-medium-v2", "own").values["expectile"]
    0.7
"""

import dataclasses
import functools
import importlib.resources
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from fat2thin import algorithms
from fat2thin.data.formats.d4rl import published_name
from fat2thin.tables import Table

ORIGINS = ("own", "fttpo")  # the method's own paper or repository, and the runs of the FtTPO paper
EVERY_FAMILY = "*"
RUN_OPTIONS = ("batch_size", "standardise", "reward_scale")
"""Options of a run that are published with the settings of its algorithm."""

_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True)
class PublishedRecord:
    """One entry of `published.toml`, whose header explains the fields."""

    algorithm: str
    origin: str
    datasets: tuple[str, ...]
    values: dict[str, Any]
    source: str
    policy: str | None = None
    batch_size: int | None = None
    standardise: bool | None = None
    reward_scale: float | str | None = None
    caveat: str | None = None

    def fits(self, dataset: str) -> bool:
        """Whether the record applies to this data set."""
        dataset = published_name(dataset)
        beginnings = tuple(name[:-1] for name in self.datasets if name.endswith("*"))
        return dataset in self.datasets or dataset.startswith(beginnings)

    @property
    def completes(self) -> bool:
        """Whether it applies to every family of policies, and so only completes other records."""
        return self.policy == EVERY_FAMILY

    def level(self, dataset: str) -> tuple[bool, bool]:
        """Return how specific it is: a record with a higher level overrides one with a lower."""
        return not self.completes, published_name(dataset) in self.datasets


@dataclasses.dataclass(frozen=True)
class PublishedSettings:
    """The published settings of an algorithm on a data set."""

    values: dict[str, Any]
    """Fields of the algorithm's config."""
    batch_size: int | None
    """None if it is not published."""
    sources: tuple[str, ...]
    """Where the values are from."""
    caveats: tuple[str, ...]
    """What differs from the source, or is uncertain."""
    standardise: bool | None = None
    """Whether the source standardises observations; None if it is not known."""
    reward_scale: float | str | None = None
    """What the source does to rewards, as an option of the run; None if it is not known."""

    @property
    def options(self) -> dict[str, Any]:
        """The published options of a run."""
        return _options(self)


def published_settings(
    algorithm: str, dataset: str, origin: str, policy: str | None = None
) -> PublishedSettings:
    """Return the published settings and their sources; a ValueError lists what is known instead.

    `policy` is the family of policies, if one is chosen by name.
    """
    if origin not in ORIGINS:
        raise ValueError(f"origin must be one of {', '.join(map(repr, ORIGINS))}, got {origin!r}")
    about = [one for one in records() if (one.algorithm, one.origin) == (algorithm, origin)]
    chosen = _of_family([one for one in about if one.fits(dataset)], algorithm, policy)
    if not chosen:
        raise ValueError(
            f"no settings of {algorithm}{f' with policy={policy!r}' if policy else ''} on "
            f"{dataset!r} are known from {origin!r}; {_what_there_is(algorithm)}"
        )
    chosen = sorted(chosen, key=lambda record: record.level(dataset))
    options = {name: value for record in chosen for name, value in _options(record).items()}
    return PublishedSettings(
        values={name: value for record in chosen for name, value in record.values.items()},
        sources=_distinct(record.source for record in chosen),
        caveats=_distinct(record.caveat for record in chosen if record.caveat),
        **{name: options.get(name) for name in RUN_OPTIONS},
    )


def _options(found: PublishedRecord | PublishedSettings) -> dict[str, Any]:
    """Return the options of a run that a record or the settings have."""
    named = {name: getattr(found, name) for name in RUN_OPTIONS}
    return {name: value for name, value in named.items() if value is not None}


def origins(algorithm: str, dataset: str) -> tuple[str, ...]:
    """Return the origins that have settings of an algorithm on a data set."""
    known = {record.origin for record in _standing(algorithm) if record.fits(dataset)}
    return tuple(origin for origin in ORIGINS if origin in known)


def families(algorithm: str, dataset: str, origin: str) -> tuple[str | None, ...]:
    """Return the families that have settings; None stands for settings without a family."""
    about = [record for record in _standing(algorithm) if record.origin == origin]
    return _distinct(record.policy for record in about if record.fits(dataset))


def _standing(algorithm: str) -> list[PublishedRecord]:
    """Return the records of an algorithm that do not only complete others."""
    return [one for one in records() if one.algorithm == algorithm and not one.completes]


@functools.cache
def records() -> tuple[PublishedRecord, ...]:
    """Return all records of `published.toml`, in their order."""
    file = importlib.resources.files("fat2thin.settings") / "published.toml"
    return parse(file.read_text(encoding="utf-8"))


def parse(text: str) -> tuple[PublishedRecord, ...]:
    """Return the records of a text in the format of `published.toml`."""
    entries = tomllib.loads(text)["settings"]
    return tuple(PublishedRecord(**one | {"datasets": tuple(one["datasets"])}) for one in entries)


def _of_family(
    fitting: Sequence[PublishedRecord], algorithm: str, policy: str | None
) -> list[PublishedRecord]:
    """Return the records of a family and those that complete them; [] if only the latter exist."""
    unnamed = [record for record in fitting if record.policy is None]
    chosen = [record for record in fitting if policy is not None and record.policy == policy]
    if policy is None or policy == _family(unnamed, algorithm):
        chosen += unnamed
    return [*(record for record in fitting if record.completes), *chosen] if chosen else []


def _family(unnamed: Iterable[PublishedRecord], algorithm: str) -> str | None:
    """Return the family that records without one apply to: that of their values, or the default."""
    named = [record.values["policy"] for record in unnamed if "policy" in record.values]
    return named[-1] if named else getattr(algorithms.get(algorithm).config(), "policy", None)


def _what_there_is(algorithm: str) -> str:
    standing = _standing(algorithm)
    if not standing:
        others = _distinct(record.algorithm for record in records())
        return f"there are none for {algorithm}, only for {', '.join(sorted(others))}"
    return "there are: " + "; ".join(
        _listed([record for record in standing if record.origin == origin])
        for origin in _distinct(record.origin for record in standing)
    )


def _listed(alike: Sequence[PublishedRecord]) -> str:
    names = sorted({name for record in alike for name in record.datasets})
    policies = _distinct(record.policy for record in alike if record.policy)
    also = f" (also with policy {', '.join(policies)})" if policies else ""
    return f"{alike[0].origin!r} on {', '.join(names)}{also}"


def _distinct(items: Iterable[_Item]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(items))


class ListedSettings(NamedTuple):
    """One entry of the listing."""

    algorithm: str
    origin: str
    policy: str | None
    datasets: tuple[str, ...]
    values: dict[str, Any]
    notes: tuple[str, ...]


def rows(algorithm: str | None = None, dataset: str | None = None) -> list[ListedSettings]:
    """Return the records of the file or, for a data set, the merged settings that a run gets."""
    known = sorted({record.algorithm for record in records()})
    if algorithm is not None and algorithm not in known:
        raise ValueError(f"no settings of {algorithm!r} are known, only of {', '.join(known)}")
    chosen = known if algorithm is None else [algorithm]
    found = list(_records(chosen) if dataset is None else _merged(chosen, dataset))
    if not found:
        raise ValueError(f"no settings of {', '.join(chosen)} are known for {dataset!r}")
    return found


def listing(found: list[ListedSettings], width: int = 100) -> str:
    """Return the rows as text, with numbered notes below."""
    numbers = {note: number for number, note in enumerate(sources(found), start=1)}
    blocks = [_block(row, [numbers[note] for note in row.notes], width) for row in found]
    notes = ({"number": f"[{number}]", "note": note} for note, number in numbers.items())
    return "\n\n".join([*blocks, Table("", tuple(notes), headings=False).text(width)])


def sources(found: list[ListedSettings]) -> list[str]:
    """Return sources and caveats of the rows, in the order of their numbers."""
    return list(dict.fromkeys(note for row in found for note in row.notes))


def _block(row: ListedSettings, numbers: list[int], width: int) -> str:
    family = {None: "", EVERY_FAMILY: ", any policy"}.get(row.policy, f", policy {row.policy}")
    head = f"{row.algorithm}, from {row.origin}{family}"
    values = ", ".join(f"{name} {_shown(value)}" for name, value in row.values.items())
    lines = [", ".join(row.datasets), values, " ".join(f"[{number}]" for number in numbers)]
    indent = " " * 4
    wrapper = textwrap.TextWrapper(width, indent, indent, break_on_hyphens=False)
    return "\n".join([head, *map(wrapper.fill, lines)])


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _records(chosen: list[str]) -> Iterator[ListedSettings]:
    about = [record for record in records() if record.algorithm in chosen]
    for one in sorted(about, key=lambda record: (record.algorithm, record.origin)):
        notes = (one.source, one.caveat) if one.caveat else (one.source,)
        values = {**one.values, **_options(one)}
        yield ListedSettings(one.algorithm, one.origin, one.policy, one.datasets, values, notes)


def _merged(chosen: list[str], dataset: str) -> Iterator[ListedSettings]:
    for algorithm in chosen:
        for origin in origins(algorithm, dataset):
            for policy in families(algorithm, dataset, origin):
                found = published_settings(algorithm, dataset, origin, policy)
                values = {**found.values, **found.options}
                notes = (*found.sources, *found.caveats)
                yield ListedSettings(algorithm, origin, policy, (dataset,), values, notes)
