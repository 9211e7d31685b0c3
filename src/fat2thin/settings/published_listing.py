"""The published settings as a list to read."""

import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from fat2thin.settings.published import EVERY_FAMILY, families, origins, published_settings, records
from fat2thin.tables import Table


class Row(NamedTuple):
    """One entry of the list."""

    algorithm: str
    origin: str
    policy: str | None
    datasets: tuple[str, ...]
    values: dict[str, Any]
    notes: tuple[str, ...]


def rows(algorithm: str | None = None, dataset: str | None = None) -> list[Row]:
    """The records as they are in the file or, for a data set, merged into what a run gets."""
    known = list(dict.fromkeys(record.algorithm for record in records()))
    if algorithm is not None and algorithm not in known:
        raise ValueError(
            f"no settings of {algorithm!r} are known; there are some of {', '.join(sorted(known))}"
        )
    chosen = known if algorithm is None else [algorithm]
    found = list(_records(chosen) if dataset is None else _merged(chosen, dataset))
    if not found:
        raise ValueError(f"no settings of {', '.join(sorted(chosen))} are known for {dataset!r}")
    return found


def listing(found: list[Row], width: int = 100) -> str:
    """The rows in words, their notes by number, and the notes below."""
    numbers = {note: number for number, note in enumerate(sources(found), start=1)}
    blocks = [_block(row, [numbers[note] for note in row.notes], width) for row in found]
    notes = ({"number": f"[{number}]", "note": note} for note, number in numbers.items())
    return "\n\n".join([*blocks, Table("", tuple(notes), headings=False).text(width)])


def sources(found: list[Row]) -> list[str]:
    """Sources and caveats of the rows, in the order of their numbers."""
    return list(dict.fromkeys(note for row in found for note in row.notes))


def _block(row: Row, numbers: list[int], width: int) -> str:
    family = {None: "", EVERY_FAMILY: ", any policy"}.get(row.policy, f", policy {row.policy}")
    head = f"{row.algorithm}, from {row.origin}{family}"
    values = ", ".join(f"{name} {_shown(value)}" for name, value in row.values.items())
    lines = [", ".join(row.datasets), values, " ".join(f"[{number}]" for number in numbers)]
    return "\n".join([head, *(_indented(line, width) for line in lines)])


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _indented(text: str, width: int) -> str:
    indent = " " * 4
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _records(chosen: list[str]) -> Iterator[Row]:
    for record in sorted(
        (record for record in records() if record.algorithm in chosen),
        key=lambda record: (record.algorithm, record.origin),
    ):
        notes = (record.source, record.caveat) if record.caveat else (record.source,)
        yield Row(
            record.algorithm,
            record.origin,
            record.policy,
            record.datasets,
            _with_batch(record.values, record.batch_size),
            notes,
        )


def _merged(chosen: list[str], dataset: str) -> Iterator[Row]:
    for algorithm in sorted(chosen):
        for origin in origins(algorithm, dataset):
            for policy in families(algorithm, dataset, origin):
                found = published_settings(algorithm, dataset, origin, policy)
                values = _with_batch(found.values, found.batch_size)
                notes = (*found.sources, *found.caveats)
                yield Row(algorithm, origin, policy, (dataset,), values, notes)


def _with_batch(values: dict[str, Any], batch_size: int | None) -> dict[str, Any]:
    return values if batch_size is None else {**values, "batch_size": batch_size}
