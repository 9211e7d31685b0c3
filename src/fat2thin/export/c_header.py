"""A policy as one C99 header: no allocation, no dependency but the C library."""

from typing import Any

import numpy as np
from numpy import ndarray

from fat2thin.export.contents import Contents
from fat2thin.export.portable import REASONS, Answer
from fat2thin.export.recorder import BOOL, REAL, WHOLE, Operation, Recording, record
from fat2thin.terminal_text import printable

_INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<", "less_equal": "<=",
    "greater": ">", "greater_equal": ">=", "equal": "==", "and": "&&", "or": "||",
}  # fmt: skip
_CALLS = {
    "exp": "exp", "log": "log", "tanh": "tanh", "sqrt": "sqrt", "floor": "floor", "sin": "sin",
    "arcsin": "asin", "absolute": "fabs",
}  # fmt: skip
_TYPES = {np.dtype(np.float32): ("float", "f"), np.dtype(np.float64): ("double", "")}


def c_header(contents: Contents, title: str) -> str:
    """Return the text of policy.h; `title` is shown in its first comment."""
    recordings = [record(contents, dtype) for dtype in _TYPES]
    tables: dict[Any, str] = {}
    functions = [_Function(one, tables) for one in recordings]
    bodies = [function.text() for function in functions]
    settings, sizes = contents.settings, recordings[0]
    lines = [
        "/* " + _comment(title),
        " *",
        " * policy_decide_float and policy_decide_double decide on one state. Observations, raw:",
        *_columns("observation", settings["observations"]),
        " * The actions are:",
        *_columns("action", settings["actions"]),
        " * uniform has one number in [0, 1] per action: the action is the quantile there.",
        " * The centre, low and high do not depend on it.",
        " * last has the last actions, NAN at the first step of an episode; it is read only if",
        " * POLICY_NEEDS_LAST is 1, and may be NULL otherwise.",
        " * reason is a sum of these codes, and refer is 1 where it is not 0:",
        *(f" *   {code:2} {name}" for code, name in REASONS.items()),
        " * The action of a referred state is the fallback, or NAN without one.",
        " * Do not compile with -ffast-math: it removes the checks of NAN and infinity.",
        " */",
        "#ifndef FAT2THIN_POLICY_H",
        "#define FAT2THIN_POLICY_H",
        "",
        "#include <math.h>",
        "",
        "enum {",
        f"  POLICY_OBSERVATIONS = {sizes.observations},",
        f"  POLICY_ACTIONS = {sizes.actions},",
        f"  POLICY_NEEDS_LAST = {int(sizes.needs_last)}",
        "};",
        "",
        *tables.values(),
        *bodies,
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _comment(text: str) -> str:
    return printable(text).replace("*/", "* /").replace("??/", "")


def _columns(kind: str, columns: Any) -> list[str]:
    return [
        f" *   {kind}[{place}]: {_comment(column['name'])}"
        + (f" ({_comment(column['unit'])})" if column["unit"] else "")
        for place, column in enumerate(columns)
    ]


class _Function:
    """Writes one function."""

    def __init__(self, recording: Recording, tables: dict[Any, str]) -> None:
        self.recording, self.tables = recording, tables
        self.operations = recording.operations
        self.real, self.suffix = _TYPES[recording.dtype]

    def text(self) -> str:
        """Return the type of the answer and the function."""
        real, answer = self.real, f"policy_answer_{self.real}"
        reals = [name for name in Answer._fields if name not in ("refer", "reason")]
        lines = ["typedef struct {"]
        lines += [f"  {real} {name}[POLICY_ACTIONS];" for name in reals]
        lines += ["  int refer;", "  int reason;", f"}} {answer};", ""]
        lines += [
            f"static inline void policy_decide_{real}(const {real} *observation,",
            f"    const {real} *uniform, const {real} *last, {answer} *answer) {{",
            "  (void)last;",
        ]
        if "uniform" not in [one.value for one in self.operations if one.name == "input"]:
            lines.append("  (void)uniform;")
        for place, one in enumerate(self.operations):
            lines += [f"  {line}" for line in self._lines(place, one)]
        for name, place in zip(Answer._fields, self.recording.outputs, strict=True):
            if name in reals:
                each = f"answer->{name}[i] = {self._at(place, 'i')};"
                lines.append(f"  for (int i = 0; i < POLICY_ACTIONS; ++i) {each}")
            else:
                lines.append(f"  answer->{name} = (int){self._at(place, '0')};")
        return "\n".join([*lines, "}", ""])

    def _at(self, place: int, index: str) -> str:
        """Return the expression of an element of a result; one column serves all."""
        one = self.operations[place]
        if one.name == "input":
            return f"{one.value}[{index}]"
        if one.name == "constant":
            values = np.ravel(one.value)
            if values.size == 1:
                return self._number(values[0])
            return f"{self._table(one.value)}[{index}]"
        return f"t{place}" if one.width == 1 else f"t{place}[{index}]"

    def _number(self, value: Any) -> str:
        if isinstance(value, np.bool_):
            return str(int(value))
        number = float(value)
        if not np.isfinite(number):
            return "NAN" if np.isnan(number) else "INFINITY" if number > 0 else "(-INFINITY)"
        text = f"{number:g}"
        if float(text) != number:
            text = number.hex()
        elif not {*text} & {*".e"}:
            text += ".0"
        return f"({text}{self.suffix})" if number < 0 else f"{text}{self.suffix}"

    def _table(self, values: ndarray) -> str:
        """Return the name of a static array; both functions share what float32 holds exactly."""
        exact = values.astype(np.float32)
        shared = np.array_equal(exact, values, equal_nan=True)
        stored = exact if shared else values
        key = stored.dtype.str, stored.tobytes()
        if values.dtype == bool:
            key, stored = ("bool", values.tobytes()), values
        name = (
            f"policy_table{[*self.tables].index(key) if key in self.tables else len(self.tables)}"
        )
        if key not in self.tables:
            real, suffix = ("int", "") if values.dtype == bool else _TYPES[stored.dtype]
            written = self.suffix
            self.suffix = suffix
            numbers = [self._number(one).strip("()") for one in np.ravel(stored)]
            self.suffix = written
            rows = [", ".join(numbers[start : start + 6]) for start in range(0, len(numbers), 6)]
            body = ",\n  ".join(rows)
            self.tables[key] = f"static const {real} {name}[{len(numbers)}] = {{\n  {body}\n}};\n"
        return name

    def _lines(self, place: int, one: Operation) -> list[str]:
        if one.name in ("input", "constant"):
            return []
        kind = {REAL: self.real, BOOL: "int", WHOLE: "int"}[one.kind]
        if one.name in ("sum", "min", "all", "any"):
            return self._reduction(place, one, kind)
        if one.name == "matmul":
            return self._matmul(place, one)
        if one.name == "concatenate":
            lines, start = [f"{kind} t{place}[{one.width}];"], 0
            for part in one.inputs:
                width = self.operations[part].width
                each = f"t{place}[{start} + i] = {self._at(part, 'i')};"
                lines.append(f"for (int i = 0; i < {width}; ++i) {each}")
                start += width
            return lines
        if one.name == "sorted":
            return self._sorted(place, one)
        if one.width == 1:
            return [f"const {kind} t{place} = {self._element(one, '0')};"]
        each = f"t{place}[i] = {self._element(one, 'i')};"
        return [f"{kind} t{place}[{one.width}];", f"for (int i = 0; i < {one.width}; ++i) {each}"]

    def _element(self, one: Operation, index: str) -> str:
        """Return the expression of one element of a result."""
        if one.name == "slice":
            start = one.value[0]
            return self._at(one.inputs[0], f"{start}" if index == "0" else f"{start} + i")
        parts = [self._at(part, index) for part in one.inputs]
        if one.name in _INFIX:
            return f"{parts[0]} {_INFIX[one.name]} {parts[1]}"
        if one.name in _CALLS:
            return f"{_CALLS[one.name]}{self.suffix}({parts[0]})"
        if one.name == "where":
            return f"{parts[0]} ? {parts[1]} : {parts[2]}"
        # So that a first argument that is not a number stays one.
        if one.name == "maximum":
            return f"{parts[0]} < {parts[1]} ? {parts[1]} : {parts[0]}"
        if one.name == "minimum":
            return f"{parts[1]} < {parts[0]} ? {parts[1]} : {parts[0]}"
        if one.name == "take":
            return self._at(one.inputs[0], parts[1])
        formats = {"negative": "-{}", "not": "!{}", "whole": "(int){}"}
        return formats[one.name].format(parts[0])

    def _reduction(self, place: int, one: Operation, kind: str) -> list[str]:
        (source,) = one.inputs
        first, each, width = (
            self._at(source, "0"),
            self._at(source, "i"),
            self.operations[source].width,
        )
        step = {
            "sum": f"t{place} += {each};",
            "min": f"t{place} = {each} < t{place} ? {each} : t{place};",
            "all": f"t{place} = t{place} && {each};",
            "any": f"t{place} = t{place} || {each};",
        }[one.name]
        return [f"{kind} t{place} = {first};", f"for (int i = 1; i < {width}; ++i) {step}"]

    def _matmul(self, place: int, one: Operation) -> list[str]:
        source, matrix = one.inputs
        inputs = self.operations[source].width
        weight = self._table(self.operations[matrix].value)
        if one.width == 1:
            each = f"t{place} += {self._at(source, 'j')} * {weight}[j];"
            return [f"{self.real} t{place} = 0;", f"for (int j = 0; j < {inputs}; ++j) {each}"]
        each = f"t{place}[i] += {self._at(source, 'j')} * {weight}[j * {one.width} + i];"
        return [
            f"{self.real} t{place}[{one.width}];",
            f"for (int i = 0; i < {one.width}; ++i) t{place}[i] = 0;",
            f"for (int j = 0; j < {inputs}; ++j)",
            f"  for (int i = 0; i < {one.width}; ++i) {each}",
        ]

    def _sorted(self, place: int, one: Operation) -> list[str]:
        """Return the element that is at this place after sorting, by its rank."""
        count, kind = len(one.inputs), self.real
        lines = [
            f"{kind} t{place}{'' if one.width == 1 else f'[{one.width}]'};",
            f"for (int i = 0; i < {one.width}; ++i) {{",
            f"  {kind} list[{count}] = {{"
            + ", ".join(self._at(part, "i") for part in one.inputs)
            + "};",
            f"  for (int j = 1; j < {count}; ++j)",
            "    for (int k = j; k > 0 && list[k] < list[k - 1]; --k) {",
            f"      const {kind} other = list[k]; list[k] = list[k - 1]; list[k - 1] = other;",
            "    }",
            f"  t{place}{'' if one.width == 1 else '[i]'} = list[{one.value}];",
            "}",
        ]
        return lines
