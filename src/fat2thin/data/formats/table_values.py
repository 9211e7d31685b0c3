"""Conversion of Arrow columns to numbers, flags, labels and times."""

import contextlib
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Kind = Literal["number", "flag", "label", "time"]

_FALSE, _TRUE = ("false", "0", "no"), ("true", "1", "yes")
_FLAGS = pa.array(_FALSE + _TRUE)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_MOMENTS = (pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
_COMPLETE = "Fill in the value, or remove the row."
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")


class BadCellsError(Exception):
    """Invalid cells of a column; the caller adds the file and the rows."""

    def __init__(self, bad: np.ndarray, what: str, way_out: str) -> None:
        super().__init__(what)
        self.offsets, self.what, self.way_out = np.flatnonzero(bad), what, way_out


class TextCellsError(BadCellsError):
    """Cells of a column of numbers that hold text other than numbers."""


def refusal(kind: Kind, type_: pa.DataType) -> tuple[str, str] | None:
    """Return why a column of this type cannot hold this kind, and the remedy; None if it can."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    flag = pa.types.is_boolean(type_)
    date = pa.types.is_timestamp(type_) or pa.types.is_date(type_)
    text = _is_text(type_)
    accepted = {
        "number": number or flag,
        "flag": number or flag or text,
        "label": number or flag or text or date,
        "time": number or text or date,
    }
    if accepted[kind] or pa.types.is_null(type_):
        return None
    if pa.types.is_decimal(type_):
        return f"holds decimals ({type_})", "Write it as float64."
    if pa.types.is_nested(type_):
        return f"holds several values per row ({type_})", "Give each value its own column."
    if text:
        return f"holds text ({type_})", "Write it as numbers."
    return f"holds {type_}, which cannot be read as a {kind}", "Write it in another type."


def numbers(column: pa.Array) -> np.ndarray:
    """Return the column in float32 or float64; every number is finite and fits in float32."""
    values = _plain_text(column) if _is_text(column.type) else None
    if values is None:
        column = _complete(column)
        values = _parsed(column) if _is_text(column.type) else _floats(column)
    # True for NaN as well.
    bad = ~(np.abs(values) <= _FLOAT32_MAX)
    if bad.any():
        first = int(bad.argmax())
        # The text of the cell: 1e400 is read as inf.
        shown = column[first].as_py() if _is_text(column.type) else values[first]
        what = f"has {_shortened(str(shown).strip())}, which is not a finite float32 number"
        raise BadCellsError(bad, what, _COMPLETE)
    return values


def flags(column: pa.Array) -> np.ndarray:
    """Return the column as booleans: true/false, 1/0 or yes/no."""
    column = _complete(column)
    if _is_text(column.type):
        place = pc.index_in(pc.utf8_lower(column), value_set=_FLAGS)
        bad = _bools(pc.is_null(place))
        values = pc.fill_null(place, 0).to_numpy() >= len(_FALSE)
    else:
        floats = _floats(column)
        values = floats == 1
        bad = ~values & (floats != 0)
    if bad.any():
        what = f"has {column[int(bad.argmax())].as_py()!r}, which is neither true nor false"
        raise BadCellsError(bad, what, "Write true or false, 1 or 0, yes or no.")
    return values


def category_codes(column: pa.Array, categories: Sequence[str]) -> np.ndarray:
    """Return the places of the cells in the list of categories, counted from 0."""
    texts = labels(column)
    places = pc.index_in(texts, value_set=pa.array(categories, pa.string()))
    bad = _bools(pc.is_null(places))
    if bad.any():
        what = f"has {_shortened(texts[int(bad.argmax())].as_py())!r}, which is not in categories"
        raise BadCellsError(
            bad, what, "Add it to the categories of the column, or correct the row."
        )
    return places.to_numpy()


def texts_that_are_no_numbers(column: pa.Array) -> set[str] | None:
    """Return the different texts of a column; None if it holds a number or is not text.

    Missing values are left out.
    """
    column = _decoded(column)
    if pa.types.is_null(column.type):
        return set()
    if not _is_text(column.type):
        return None
    texts = pc.unique(pc.utf8_trim_whitespace(column.cast(pa.string()))).to_pylist()
    found = {text for text in texts if text}
    return None if any(_number_or_none(text) is not None for text in found) else found


def labels(column: pa.Array) -> pa.Array:
    """Return the column as text."""
    return _complete(column).cast(pa.string())


def times(column: pa.Array) -> np.ndarray:
    """Return the column in float64; dates become microseconds since 1970."""
    column = _complete(column)
    if _is_text(column.type):
        column = _moments(column)
    if pa.types.is_temporal(column.type):
        return column.to_numpy(zero_copy_only=False).astype("datetime64[us]").astype(np.float64)
    return numbers(column)


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_) or type_ == pa.string_view()


def _bools(mask: pa.Array) -> np.ndarray:
    return mask.to_numpy(zero_copy_only=False)


def _complete(column: pa.Array) -> pa.Array:
    """Decode dictionaries and strip text; raise an error if a value is missing."""
    column = _decoded(column)
    missing = _bools(column.is_null(nan_is_null=True))
    if _is_text(column.type):
        column = pc.utf8_trim_whitespace(column.cast(pa.string()))
        missing |= _bools(pc.fill_null(pc.equal(column, ""), False))
    if missing.any():
        raise BadCellsError(missing, "has no value", _COMPLETE)
    return column


def _decoded(column: pa.Array) -> pa.Array:
    """Return a dictionary-encoded column as plain values."""
    if not pa.types.is_dictionary(column.type):
        return column
    if column.type.value_type == pa.string_view():  # Arrow cannot decode these
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.string()))
    return column.dictionary_decode()


def _floats(column: pa.Array) -> np.ndarray:
    values = column.to_numpy(zero_copy_only=False)
    return values if values.dtype == np.float32 else values.astype(np.float64)


def _plain_text(column: pa.Array) -> np.ndarray | None:
    """Return the numbers in a text column by a fast cast; None if it fails."""
    try:
        return None if column.null_count else column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        return None


def _parsed(column: pa.Array) -> np.ndarray:
    values = _plain_text(column)
    if values is not None:
        return values
    # Slow, but it finds the wrong cell.
    texts = column.to_pylist()
    parsed = [_number_or_none(text) for text in texts]
    bad = np.array([number is None for number in parsed])
    if bad.any():
        text = texts[int(bad.argmax())]
        what = f"has {_shortened(text)!r}, which is not a number"
        if _THOUSANDS.fullmatch(text):
            what = f"{what}: its comma looks like a thousands separator"
            raise BadCellsError(bad, what, "Write numbers without thousands separators.")
        if _number_or_none(text.replace(",", ".", 1)) is not None:
            raise BadCellsError(bad, what, "Write numbers with a decimal point, not a comma.")
        raise TextCellsError(bad, what, _COMPLETE)
    return np.array(parsed, np.float64)


def _number_or_none(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _moments(column: pa.Array) -> pa.Array:
    """Convert text to numbers, else to dates without or with a time zone."""
    for type_ in _MOMENTS:
        with contextlib.suppress(pa.ArrowInvalid):
            return column.cast(type_)
    rows = range(len(column))
    ways = np.array([[_casts(column[row : row + 1], type_) for type_ in _MOMENTS] for row in rows])
    unreadable = ~np.any(ways, axis=1)
    first = ways.argmax(axis=1)
    bad = unreadable if unreadable.any() else first != first[0]
    text = _shortened(column[int(bad.argmax())].as_py())
    what = f"has {text!r}, which is not a number or date in the format of the rows above"
    way_out = "Write numbers, or dates such as 2024-05-31 14:00, all in the same format."
    raise BadCellsError(bad, what, way_out)


def _casts(column: pa.Array, type_: pa.DataType) -> bool:
    try:
        column.cast(type_)
    except pa.ArrowInvalid:
        return False
    return True
