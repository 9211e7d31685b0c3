"""Records what `portable.Policy` computes, as a list of operations to write in another language.

A `Recorder` takes the place of NumPy. What it returns are `Recorded` arrays: each names one
operation, its inputs and its width. Arrays have two axes, rows and columns; constants have one row
(or one axis, for tables), and are folded by NumPy. Equal operations are recorded once.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin.export.contents import Contents
from fat2thin.export.portable import Answer

REAL, BOOL, WHOLE = "real", "bool", "whole"
INPUTS = ("observation", "uniform", "last")


class Operation(NamedTuple):
    """One step of the computation."""

    name: str
    """Such as "add", "matmul" or "input"."""
    inputs: tuple[int, ...]
    """Places of the operations whose results it takes."""
    width: int
    """Number of columns of the result."""
    kind: str
    """REAL, BOOL or WHOLE."""
    value: Any = None
    """The array of a constant, the name of an input, the ends of a slice, or the place in a
    sorted list."""


class Recorded:
    """The result of an operation."""

    __array_ufunc__ = None  # so that NumPy's own operators leave it to this class
    __hash__ = object.__hash__

    def __init__(self, recorder: "Recorder", place: int) -> None:
        self.recorder, self.place = recorder, place

    @property
    def operation(self) -> Operation:
        """The operation that it is the result of."""
        return self.recorder.operations[self.place]

    @property
    def shape(self) -> tuple[None, int]:
        """Number of rows, which is open, and of columns."""
        return None, self.operation.width

    def _binary(self, name: str, other: Any, kind: str = REAL, mirrored: bool = False) -> Any:
        pair = (other, self) if mirrored else (self, other)
        return self.recorder.record(name, pair, kind)

    def __add__(self, other: Any) -> Any:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Any:
        return self._binary("add", other, mirrored=True)

    def __sub__(self, other: Any) -> Any:
        return self._binary("subtract", other)

    def __rsub__(self, other: Any) -> Any:
        return self._binary("subtract", other, mirrored=True)

    def __mul__(self, other: Any) -> Any:
        return self._binary("multiply", other)

    def __rmul__(self, other: Any) -> Any:
        return self._binary("multiply", other, mirrored=True)

    def __truediv__(self, other: Any) -> Any:
        return self._binary("divide", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._binary("divide", other, mirrored=True)

    def __neg__(self) -> Any:
        return self.recorder.record("negative", (self,))

    def __abs__(self) -> Any:
        return self.recorder.record("absolute", (self,))

    def __lt__(self, other: Any) -> Any:
        return self._binary("less", other, BOOL)

    def __le__(self, other: Any) -> Any:
        return self._binary("less_equal", other, BOOL)

    def __gt__(self, other: Any) -> Any:
        return self._binary("greater", other, BOOL)

    def __ge__(self, other: Any) -> Any:
        return self._binary("greater_equal", other, BOOL)

    def __eq__(self, other: Any) -> Any:
        return self._binary("equal", other, BOOL)

    def __and__(self, other: Any) -> Any:
        return self._binary("and", other, BOOL)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return self._binary("or", other, BOOL)

    __ror__ = __or__

    def __invert__(self) -> Any:
        return self.recorder.record("not", (self,), BOOL)

    def __getitem__(self, key: Any) -> Any:
        rows, columns = key
        assert rows == slice(None) and columns.step is None
        ends = columns.start, columns.stop
        return self.recorder.record("slice", (self,), width=ends[1] - ends[0], value=ends)

    def astype(self, dtype: Any) -> Any:
        """Return it as whole numbers."""
        assert np.dtype(dtype).kind == "i"
        return self.recorder.record("whole", (self,), WHOLE)


class Recorder:
    """Stands in for NumPy while a policy is recorded."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.operations: list[Operation] = []
        self._known: dict[Any, int] = {}

    def __getattr__(self, name: str) -> Any:
        """Return a function of one, two or three arrays, such as `exp`, `maximum` or `where`."""
        if name not in _FUNCTIONS:
            raise AttributeError(name)

        def call(*arrays: Any) -> Any:
            if not any(isinstance(array, Recorded) for array in arrays):
                return getattr(np, name)(*arrays)
            return self.record(name, arrays)

        return call

    def input(self, name: str, width: int) -> Recorded:
        """Return an input of a policy."""
        return self._add(Operation("input", (), width, REAL, name))

    def record(
        self, name: str, arrays: Sequence[Any], kind: str = REAL, width: int = 0, value: Any = None
    ) -> Recorded:
        """Return the result of an operation on recorded arrays and constants."""
        inputs = tuple(self.constant(array) for array in arrays)
        width = width or max(self.operations[place].width for place in inputs)
        if name == "where":
            kind = self.operations[inputs[1]].kind
        return self._add(Operation(name, inputs, width, kind, value))

    def constant(self, array: Any) -> int:
        """Return the place of an array, which is added as a constant if it is not recorded."""
        if isinstance(array, Recorded):
            return array.place
        given = np.asarray(array)
        kind = BOOL if given.dtype == bool else REAL
        given = given if kind == BOOL else given.astype(self.dtype)
        given = given.reshape(1, 1) if given.ndim == 0 else given
        return self._add(Operation("constant", (), given.shape[-1], kind, given)).place

    def _add(self, operation: Operation) -> Recorded:
        value = operation.value
        if isinstance(value, ndarray):
            value = value.shape, value.dtype.str, value.tobytes()
        key = (*operation[:4], value)
        if key not in self._known:
            self._known[key] = len(self.operations)
            self.operations.append(operation)
        return Recorded(self, self._known[key])

    # Functions that are not element by element.

    def matmul(self, x: Any, weight: ndarray) -> Any:
        """Return x @ weight."""
        return self.record("matmul", (x, weight), width=weight.shape[1])

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        """Return arrays beside each other."""
        assert axis == 1
        if len(arrays) == 1:
            return arrays[0]
        if not any(isinstance(array, Recorded) for array in arrays):
            return np.concatenate(arrays, axis=1)
        width = sum(self.operations[self.constant(array)].width for array in arrays)
        return self.record("concatenate", arrays, width=width)

    def all(self, mask: Any, axis: int, keepdims: bool) -> Any:
        """Return whether a row holds throughout."""
        return self._reduced("all", mask, BOOL)

    def any(self, mask: Any, axis: int, keepdims: bool) -> Any:
        """Return whether a row holds anywhere."""
        return self._reduced("any", mask, BOOL)

    def sum(self, x: Any, axis: int, keepdims: bool) -> Any:
        """Return the sum of each row."""
        return self._reduced("sum", x, REAL)

    def min(self, x: Any, axis: int, keepdims: bool) -> Any:
        """Return the smallest number of each row."""
        return self._reduced("min", x, REAL)

    def _reduced(self, name: str, x: Any, kind: str) -> Any:
        if not isinstance(x, Recorded):
            return getattr(np, name)(x, axis=1, keepdims=True)
        return x if x.operation.width == 1 else self.record(name, (x,), kind, width=1)

    def take(self, table: ndarray, places: Recorded) -> Any:
        """Return the entries of a table at whole numbers."""
        return self.record("take", (table, places), width=places.operation.width)

    def stack(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arrays, to be sorted."""
        return list(arrays)

    def sort(self, arrays: list[Any], axis: int) -> list[Any]:
        """Return the arrays with the smallest element of each place first, and so on."""
        assert axis == 0
        return [self.record("sorted", arrays, value=place) for place in range(len(arrays))]

    def zeros_like(self, x: Any) -> ndarray:
        """Return one row of zeros, which is extended where it is used."""
        width = x.operation.width if isinstance(x, Recorded) else np.shape(x)[-1]
        return np.zeros((1, width), self.dtype)


_FUNCTIONS = (
    "maximum", "minimum", "where", "exp", "log", "tanh", "sqrt", "floor", "sin", "arcsin",
)  # fmt: skip


class Recording(NamedTuple):
    """Everything that a policy computes."""

    operations: list[Operation]
    """In an order in which each can be computed; those without use are left out."""
    outputs: tuple[int, ...]
    """Places of action, centre, low, high, refer and reason, as in `Answer`."""
    observations: int
    actions: int
    needs_last: bool
    dtype: np.dtype


def record(contents: Contents, dtype: Any = np.float32) -> Recording:
    """Return the operations of a policy in a type."""
    recorder = Recorder(dtype)
    policy = contents.policy(dtype, recorder)
    sizes = len(policy.observations), len(policy.actions), len(policy.actions)
    inputs = [recorder.input(name, size) for name, size in zip(INPUTS, sizes, strict=True)]
    last = inputs[2] if policy.needs_last_action else None
    with np.errstate(all="ignore"):
        found = policy.decide(inputs[0], inputs[1], last)
    outputs = [recorder.constant(part) for part in found]
    used, left = set[int](), [*outputs, *range(2 + policy.needs_last_action)]
    while left:
        place = left.pop()
        if place not in used:
            used.add(place)
            left.extend(recorder.operations[place].inputs)
    kept = sorted(used)
    moved = dict(zip(kept, itertools.count()))
    operations = [
        one._replace(inputs=tuple(moved[place] for place in one.inputs))
        for one in (recorder.operations[place] for place in kept)
    ]
    assert len(outputs) == len(Answer._fields)
    return Recording(
        operations, tuple(moved[place] for place in outputs), sizes[0], sizes[1],
        policy.needs_last_action, recorder.dtype,
    )  # fmt: skip
