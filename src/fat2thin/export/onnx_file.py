"""A policy as an ONNX model, written with the `onnx` package alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from fat2thin.export.contents import Contents
from fat2thin.export.portable import Answer
from fat2thin.export.recorder import INPUTS, WHOLE, Operation, Recording, record

OPSET = 18
_IR_VERSION = 9  # of ONNX 1.14; newer runtimes read it, older ones refuse newer models
_ROWS = "rows"
_NODES = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "negative": "Neg",
    "absolute": "Abs", "maximum": "Max", "minimum": "Min", "exp": "Exp", "log": "Log",
    "tanh": "Tanh", "sqrt": "Sqrt", "floor": "Floor", "sin": "Sin", "arcsin": "Asin",
    "where": "Where", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "equal": "Equal", "and": "And", "or": "Or", "not": "Not",
    "matmul": "MatMul", "take": "Gather",
}  # fmt: skip


def onnx_file(contents: Contents, properties: Mapping[str, str]) -> bytes:
    """Return the bytes of policy.onnx; `properties` are stored in it."""
    import onnx

    recording = record(contents)
    model = _Graph(recording).model(properties)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


class _Graph:
    def __init__(self, recording: Recording) -> None:
        self.recording, self.operations = recording, recording.operations
        self.nodes: list[Any] = []
        self.names: dict[int, str] = {}
        self.row_count = ""
        self.skipped = self.clipped()
        self.constants: dict[Any, Any] = {}
        self.sorted: dict[tuple[int, ...], str] = {}
        # Constants, and what depends on nothing else, have one row.
        self.batched: list[bool] = []
        for one in self.operations:
            batched = one.name == "input" or any(self.batched[place] for place in one.inputs)
            self.batched.append(batched)

    def model(self, properties: Mapping[str, str]) -> Any:
        """Return the model."""
        from onnx import TensorProto, helper

        for name, place in zip(Answer._fields[:4], self.recording.outputs, strict=False):
            if self.batched[place] and self.operations[place].name != "input":
                self.names.setdefault(place, name)
        for place, one in enumerate(self.operations):
            self.add(place, one)
        outputs = []
        for name, place in zip(Answer._fields, self.recording.outputs, strict=True):
            source = self.expanded(place)
            if name in ("refer", "reason"):
                flat = self.node(
                    "Squeeze", [source, self.constant(np.asarray([1]))], f"{name}_flat"
                )
                self.node("Cast", [flat], name, to=TensorProto.INT32)
                outputs.append(helper.make_tensor_value_info(name, TensorProto.INT32, [_ROWS]))
            else:
                if self.names.get(place) != name:
                    self.node("Identity", [source], name)
                width = self.recording.actions
                outputs.append(
                    helper.make_tensor_value_info(name, TensorProto.FLOAT, [_ROWS, width])
                )
        inputs = [
            helper.make_tensor_value_info(one.value, TensorProto.FLOAT, [_ROWS, one.width])
            for one in self.operations
            if one.name == "input"
        ]
        used = {name for node in self.nodes for name in node.input}
        tensors = [tensor for name, tensor in self.constants.values() if name in used]
        graph = helper.make_graph(self.nodes, "policy", inputs, outputs, tensors)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION,
            producer_name="fat2thin",
        )  # fmt: skip
        helper.set_model_props(model, dict(properties))
        return model

    def node(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{name}_node", **attributes))
        return name

    def constant(self, values: ndarray) -> str:
        """Return the name of an initialiser."""
        from onnx import numpy_helper

        values = np.asarray(values, order="C")
        key = values.shape, values.dtype.str, values.tobytes()
        if key not in self.constants:
            name = f"constant_{len(self.constants)}"
            self.constants[key] = name, numpy_helper.from_array(values, name)
        return self.constants[key][0]

    def name(self, place: int) -> str:
        """Return the name of a result."""
        one = self.operations[place]
        if one.name == "constant":
            return self.constant(one.value)
        return str(one.value) if one.name == "input" else self.names.get(place, f"t{place}")

    def is_number(self, place: int) -> bool:
        """Whether a result is one constant number."""
        one = self.operations[place]
        return one.name == "constant" and one.value.size == 1

    def is_zero(self, place: int) -> bool:
        """Whether a constant number is 0."""
        return not np.ravel(self.operations[place].value)[0]

    def clipped(self) -> set[int]:
        """Return the maxima that become part of a Clip node: runtimes take time for each node."""
        found = set()
        for one in self.operations:
            if one.name != "minimum" or not self.is_number(one.inputs[1]):
                continue
            inner = self.operations[one.inputs[0]]
            uses = sum(one.inputs[0] in other.inputs for other in self.operations)
            if inner.name == "maximum" and self.is_number(inner.inputs[1]) and uses == 1:
                found.add(one.inputs[0])
        return found - {*self.recording.outputs}

    def expanded(self, place: int) -> str:
        """Return the name of a result that has all rows."""
        if self.batched[place]:
            return self.name(place)
        if not self.row_count:
            ends = [self.constant(np.asarray([0])), self.constant(np.asarray([1]))]
            shape = self.node("Shape", [INPUTS[0]], "shape")
            self.row_count = self.node("Slice", [shape, *ends], "row_count")
        width = self.constant(np.asarray([self.operations[place].width]))
        name = f"t{place}_rows_{len(self.nodes)}"
        shape = self.node("Concat", [self.row_count, width], f"{name}_shape", axis=0)
        return self.node("Expand", [self.name(place), shape], name)

    def add(self, place: int, one: Operation) -> None:
        """Add the nodes of an operation."""
        from onnx import TensorProto

        name, inputs = self.name(place), [self.name(part) for part in one.inputs]
        if one.name in ("input", "constant") or place in self.skipped:
            return
        if one.name == "minimum" and one.inputs[0] in self.skipped:
            inner = self.operations[one.inputs[0]]
            ends = [self.operations[part].value for part in (inner.inputs[1], one.inputs[1])]
            numbers = [self.constant(np.asarray(np.ravel(end)[0])) for end in ends]
            self.node("Clip", [self.name(inner.inputs[0]), *numbers], name)
        elif (
            one.name == "maximum" and self.is_number(one.inputs[1]) and self.is_zero(one.inputs[1])
        ):
            self.node("Relu", inputs[:1], name)
        elif one.name in _NODES:
            self.node(_NODES[one.name], inputs, name)
        elif one.name == "whole":
            assert one.kind == WHOLE
            self.node("Cast", inputs, name, to=TensorProto.INT32)
        elif one.name == "slice":
            ends = [self.constant(np.asarray([end])) for end in (*one.value, 1)]
            self.node("Slice", [*inputs, *ends], name)
        elif one.name == "concatenate":
            self.node("Concat", [self.expanded(part) for part in one.inputs], name, axis=1)
        elif one.name == "sorted":
            chosen = self.constant(np.asarray(one.value))
            self.node("Gather", [self.in_order(one.inputs), chosen], name, axis=0)
        elif one.name in ("sum", "min"):
            kind = {"sum": "ReduceSum", "min": "ReduceMin"}[one.name]
            self.node(kind, [*inputs, self.constant(np.asarray([1]))], name)
        else:
            # Reductions of truth values are not in this opset.
            kind = {"all": "ReduceMin", "any": "ReduceMax"}[one.name]
            number = self.node("Cast", inputs, f"{name}_number", to=TensorProto.FLOAT)
            axis = self.constant(np.asarray([1]))
            found = self.node(kind, [number, axis], f"{name}_found")
            self.node("Cast", [found], name, to=TensorProto.BOOL)

    def in_order(self, parts: tuple[int, ...]) -> str:
        """Return the name of the sorted stack of some results."""
        if parts not in self.sorted:
            stem, axis = f"sorted{len(self.sorted)}", self.constant(np.asarray([0]))
            single = [
                self.node("Unsqueeze", [self.expanded(part), axis], f"{stem}_{number}")
                for number, part in enumerate(parts)
            ]
            stack = self.node("Concat", single, f"{stem}_stack", axis=0)
            count = self.constant(np.asarray([len(parts)]))
            self.two_outputs("TopK", [stack, count], stem)
            self.sorted[parts] = stem
        return self.sorted[parts]

    def two_outputs(self, kind: str, inputs: list[str], stem: str) -> None:
        """Add the node that sorts in increasing order."""
        from onnx import helper

        outputs = [stem, f"{stem}_places"]
        self.nodes.append(
            helper.make_node(
                kind, inputs, outputs, name=f"{stem}_node", axis=0, largest=0, sorted=1
            )
        )
