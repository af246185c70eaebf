"""Reads ONNX files: the nodes of a graph, and the shape and the type of every tensor between them.

Shapes are those that ``onnx.shape_inference`` finds, node by node, once every dimension of the inputs has a size. What
depends on no input (shapes, masks, positions) is computed when somebody asks for it; weights are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.inputs import read_bytes
from siliconloom.models.gguf import missing

MOST_BYTES = 2**31
"""Of a file: protobuf has no longer messages."""
MOST_SIZE = 2**24
"""Elements along one dimension."""
MOST_ELEMENTS = 2**24
"""Of a tensor that is computed here."""
SHAPING = 4096
"""Elements of a tensor whose values the shapes of others may depend on."""
OLDEST = 9
CONTROL = ("If", "Loop", "Scan")
SIZED = ("Range", "Resize", "Upsample")
"""Nodes whose shapes depend on numbers that need not be whole."""
SHAPES = ("Shape", "Size")
"""Nodes whose result is known although their operand is not."""
ONES, COUNTED = "attention_mask", "position_ids"
"""Inputs that are known: every position of every sequence holds a token, and these are numbered from zero."""
TYPES = {
    "FLOAT": "fp32",
    "FLOAT16": "fp16",
    "BFLOAT16": "bf16",
    "FLOAT8E4M3FN": "fp8_e4m3",
    "FLOAT8E5M2": "fp8_e5m2",
    "DOUBLE": "fp64",
}
"""Formats of numbers that are no whole ones, by the names that ONNX has for them."""
NARROW = ("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")
"""Formats of whole numbers that stand for weights and values rather than for places."""
DOMAINS = ("", "ai.onnx")

Values = NDArray[Any]


class OnnxTensor(Struct, frozen=True):
    """A tensor: its shape, and its format, which is empty for whole numbers, truth values and text.

    ``constant`` says that no input has to do with it; ``narrow`` is the format of whole numbers of 8 bits and fewer.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    constant: bool = False
    narrow: str = ""

    @property
    def elements(self) -> int:
        """How many there are."""
        return int(np.prod([1, *self.shape], dtype=object))


class OnnxNode(Struct, frozen=True, eq=False):
    """A node; an input that is left out is empty text."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = {}

    @property
    def output(self) -> str:
        """The first of its results."""
        return self.outputs[0]

    def input(self, number: int) -> str:
        """An input, or empty text where there is none."""
        return self.inputs[number] if number < len(self.inputs) else ""

    def __str__(self) -> str:
        return f"node {self.name} ({self.kind})"


class OnnxModel:
    """A file's graph, with sizes for its dimensions.

    Parameters
    ----------
    path
        Of the file.
    model
        What ``onnx.load`` makes of it.
    sizes
        Of dimensions that have no size in the file, by their names.
    """

    def __init__(self, path: str, model: Any, sizes: Mapping[str, int]) -> None:
        self.path, self.sizes = path, dict(sizes)
        self.nodes: list[OnnxNode] = []
        self.tensors: dict[str, OnnxTensor] = {}
        self.initialisers: dict[str, Any] = {}
        self.opsets = self._opsets(model)
        self._context = self._checks(model)
        self.inputs: list[str] = []
        self.outputs = [each.name for each in model.graph.output]
        self._protos: dict[str, Any] = {}
        self._makers: dict[str, OnnxNode] = {}
        self._values: dict[str, Values | None] = {}
        self._types: dict[str, Any] = {}
        self._read(model.graph)

    def value(self, name: str) -> Values | None:
        """Values of a tensor that no input has to do with; none where they are too many, or lie in no file.

        Raises
        ------
        LoomError
            Where they cannot be computed.
        """
        waiting = [name]
        while waiting:
            each = waiting[-1]
            if each in self._values or not self._known(each):
                self._values.setdefault(each, None)
                waiting.pop()
                continue
            if each in self.initialisers:
                self._values[each] = self._initial(each)
                continue
            maker = self._makers[each]
            unknown = [i for i in maker.inputs if i and i not in self._values]
            if unknown:
                waiting += unknown
                continue
            self._compute(maker)
        return self._values[name]

    def scalar(self, name: str) -> float | None:
        """The one value of a tensor that has one, and that no input has to do with."""
        tensor = self.tensors.get(name)
        if tensor is None or not tensor.constant or tensor.elements != 1:
            return None
        value = self.value(name)
        return None if value is None or value.dtype.kind not in "fiub" else float(value.reshape(-1)[0])

    def error(self, node: OnnxNode, rule: str) -> LoomError:
        """Make the error for a node."""
        return LoomError(f"{self.path}: {node}: {rule}")

    def unsupported(self, node: OnnxNode, what: str) -> LoomError:
        """Make the error for a node that nothing here is made of."""
        return NotSupported(f"{what} ({self.path}: {node})")

    def _known(self, name: str) -> bool:
        tensor = self.tensors.get(name)
        return tensor is not None and tensor.constant and tensor.elements <= MOST_ELEMENTS

    def _opsets(self, model: Any) -> dict[str, int]:
        import onnx

        found = {each.domain: each.version for each in model.opset_import}
        found = {"" if domain == "ai.onnx" else domain: version for domain, version in found.items()}
        newest, own = onnx.defs.onnx_opset_version(), found.get("", 0)
        if not OLDEST <= own <= newest:
            rule = f"ONNX operators of version {own} (opset); versions {OLDEST} to {newest} are read"
            raise LoomError(f"{self.path}: {rule}")
        return found

    def _checks(self, model: Any) -> Any:
        """What ``onnx.checker`` asks of a node."""
        import onnx

        context = onnx.checker.C.CheckerContext()
        context.ir_version = model.ir_version
        context.opset_imports = self.opsets
        return context

    def _read(self, graph: Any) -> None:
        """Inputs and initialisers, then node by node what comes of them."""
        for proto in graph.initializer:
            self._begin(proto.name, self._tensor_type(proto.data_type, tuple(proto.dims)), constant=True)
            self.initialisers[proto.name] = proto
        for sparse in graph.sparse_initializer:
            raise NotSupported(f"sparse weights ({self.path}: {sparse.values.name})")
        unnamed: list[str] = []
        for each in graph.input:
            if each.name not in self.initialisers:
                self._input(each, unnamed)
        if unnamed:
            shown = ", ".join(dict.fromkeys(unnamed))
            first = unnamed[0]
            raise LoomError(
                f"{self.path}: these dimensions of its inputs have no size: {shown}; "
                f"give each one, as --set workload.dimensions.{first}=1"
            )
        for number, proto in enumerate(graph.node):
            self._node(number, proto)
        lost = next((name for name in self.outputs if name not in self.tensors), None)
        if lost is not None:
            raise LoomError(f"{self.path}: no node makes its output {lost}")

    def _input(self, proto: Any, unsized: list[str]) -> None:
        if not proto.type.HasField("tensor_type"):
            raise NotSupported(f"an input that is no tensor ({self.path}: {proto.name})")
        typed = proto.type.tensor_type
        if not typed.HasField("shape"):
            raise LoomError(f"{self.path}: the input {proto.name} says nothing of its shape")
        shape = []
        for axis, dimension in enumerate(typed.shape.dim):
            label = dimension_name(proto.name, axis, dimension)
            if label is not None and label not in self.sizes:
                unsized.append(label)
            shape.append(dimension.dim_value if label is None else self.sizes.get(label, 1))
        known = len(shape) == 2 and proto.name in (ONES, COUNTED)
        self._begin(proto.name, self._tensor_type(typed.elem_type, tuple(shape)), constant=known)
        self.inputs.append(proto.name)
        if known:
            counted = np.broadcast_to(np.arange(shape[1]), shape)
            kind = _numpy_type(typed.elem_type)
            self._values[proto.name] = (np.ones(shape) if proto.name == ONES else counted).astype(kind)

    def _tensor_type(self, kind: int, shape: tuple[int, ...]) -> Any:
        import onnx

        return onnx.helper.make_tensor_type_proto(kind, shape)

    def _begin(self, name: str, typed: Any, *, constant: bool) -> None:
        """Note a tensor whose type is known."""
        import onnx

        inner = typed.tensor_type
        shape = tuple(each.dim_value for each in inner.shape.dim)
        names = onnx.TensorProto.DataType
        try:
            label = names.Name(inner.elem_type)
        except ValueError:
            raise LoomError(f"{self.path}: the tensor {name} has type {inner.elem_type}, which ONNX has not") from None
        big = next((size for size in shape if not 0 <= size <= MOST_SIZE), None)
        if big is not None:
            raise LoomError(f"{self.path}: the tensor {name} has a dimension of {big:,}; at most {MOST_SIZE:,} is read")
        self._types[name] = typed
        narrow = label.lower() if label in NARROW else ""
        self.tensors[name] = OnnxTensor(name, shape, TYPES.get(label, ""), constant, narrow)

    def _node(self, number: int, proto: Any) -> None:
        """Shapes of what a node makes."""
        import onnx

        outputs = tuple(proto.output)
        made = next((name for name in outputs if name), f"node_{number}")
        attributes = {each.name: each for each in proto.attribute}
        node = OnnxNode(proto.name or made, proto.op_type, tuple(proto.input), outputs, {})
        if proto.op_type in CONTROL:
            raise self.unsupported(node, f"control flow in ONNX models, {proto.op_type}")
        if proto.domain not in DOMAINS:
            raise self.unsupported(node, f"operators of {proto.domain}, {proto.op_type}")
        lost = next((name for name in node.inputs if name and name not in self.tensors), None)
        if lost is not None:
            raise self.error(node, f"its input {lost} is made by no node before it")
        if not any(outputs):
            raise self.error(node, "it makes nothing")
        constant = all(self.tensors[name].constant for name in node.inputs if name)
        constant = proto.op_type in SHAPES or (constant and not proto.op_type.startswith("Random"))
        try:
            node.attributes.update({key: onnx.helper.get_attribute_value(each) for key, each in attributes.items()})
            schema = onnx.defs.get_schema(proto.op_type, self.opsets[""], "")
            onnx.checker.check_node(proto, self._context)
            found = self._inferred(schema, node, proto)
        except onnx.defs.SchemaError:
            raise self.error(node, f"ONNX of version {self.opsets['']} has no such operator") from None
        except LoomError:
            raise
        except Exception as error:  # whatever onnx says of a node that is not sound
            raise self.error(node, f"it is not sound: {_reason(error)}") from None
        self._protos[made] = proto
        for name in outputs:
            if name:
                self._begin(name, self._sized(node, name, found.get(name)), constant=constant)
                self._makers[name] = node
        self.nodes.append(node)

    def _inferred(self, schema: Any, node: OnnxNode, proto: Any) -> dict[str, Any]:
        import onnx

        types = {name: self._types[name] for name in node.inputs if name}
        data = {}
        for name in types:
            tensor = self.tensors[name]
            whole = not tensor.format and tensor.elements <= SHAPING
            if tensor.constant and (whole or (node.kind in SIZED and len(tensor.shape) < 2)):
                data[name] = self._needed(node, name)
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        found: dict[str, Any] = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=opsets
        )
        if node.kind in SHAPES:
            begin, end = node.attributes.get("start", 0), node.attributes.get("end")
            tensor = self.tensors[node.input(0)]
            sizes: Any = tensor.elements if node.kind == "Size" else tensor.shape[begin:end]
            self._values[node.output] = value = np.array(sizes, np.int64)
            found = {node.output: self._tensor_type(onnx.TensorProto.INT64, value.shape)}
        return found

    def _needed(self, node: OnnxNode, name: str) -> Any:
        """Values of a tensor that a node's shapes may depend on."""
        import onnx

        value = self.value(name)
        if value is None:
            raise self.error(node, f"its shapes depend on {name}, whose values lie in a file that is not there")
        return onnx.numpy_helper.from_array(np.array(value, order="C"), name)

    def _sized(self, node: OnnxNode, name: str, typed: Any) -> Any:
        """The type of a result, all of whose dimensions must have sizes."""
        if typed is not None and not typed.HasField("tensor_type"):
            raise self.unsupported(node, f"ONNX operators that make {typed.WhichOneof('value')}, {node.kind}")
        ranked = typed is not None and typed.tensor_type.HasField("shape")
        if ranked and all(each.HasField("dim_value") for each in typed.tensor_type.shape.dim):
            return typed
        operands = [self.tensors[each] for each in node.inputs if each]
        if not ranked and all(each.constant or each.format for each in operands):
            raise self.unsupported(node, f"the ONNX operator {node.kind}, whose shape ONNX does not infer, {name}")
        raise self.unsupported(node, f"results whose shape depends on values, {name}")

    def _initial(self, name: str) -> Values | None:
        import onnx

        proto = self.initialisers[name]
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            where = next((each.value for each in proto.external_data if each.key == "location"), "")
            if not (Path(self.path).parent / where).is_file():
                return None
        try:
            return np.asarray(onnx.numpy_helper.to_array(proto, str(Path(self.path).parent)))
        except Exception as error:  # whatever onnx says of a tensor whose bytes are not as many as it should have
            raise LoomError(f"{self.path}: the tensor {name} cannot be read: {_reason(error)}") from None

    def _compute(self, node: OnnxNode) -> None:
        """Values of a node's results from those of its inputs, by ONNX's reference implementation."""
        from onnx.reference import ReferenceEvaluator

        known = {name: self._values[name] for name in node.inputs if name}
        given = {name: value for name, value in known.items() if value is not None}
        if len(given) < len(known):
            self._values.update(dict.fromkeys(node.outputs))
            return
        made = next(name for name in node.outputs if name)
        try:
            with np.errstate(all="ignore"):
                if node.kind == "GatherElements":  # the reference makes a list of all rows
                    data, indices = (given[name] for name in node.inputs)
                    axis = int(node.attributes.get("axis", 0))
                    found: Any = [np.take_along_axis(data, indices, axis)]
                else:
                    found = ReferenceEvaluator(self._protos[made], opsets=self.opsets).run(None, given)
        except Exception as error:  # whatever its implementation says
            raise self.error(node, f"its constant result cannot be computed: {_reason(error)}") from None
        kept = [name for name in node.outputs if name]
        self._values.update({name: np.asarray(value) for name, value in zip(kept, found, strict=False)})
        for name in kept:
            self._values.setdefault(name, None)


def dimension_name(tensor: str, axis: int, dimension: Any) -> str | None:
    """Name of a dimension without a size: its own, or that of its tensor and its number; none of one with a size."""
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return None
    return str(dimension.dim_param) if dimension.dim_param else f"{tensor}_{axis}"


def load_onnx(path: str) -> Any:
    """A file as the package ``onnx`` reads it, without weights that lie beside it, functions written out.

    Raises
    ------
    LoomError
        When it cannot be read, is no ONNX file or is damaged, or the package is not there.
    """
    try:
        import onnx
        import onnx.inliner
        from google.protobuf.message import DecodeError
    except ImportError:
        raise missing("onnx", f"ONNX models ({path})", extra="onnx") from None
    raw = read_bytes(path, MOST_BYTES, "ONNX file")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(raw)
    except (DecodeError, ValueError, RuntimeError):
        raise LoomError(f"{path}: no sound ONNX file: its {len(raw):,} B are no ModelProto, or end early") from None
    if not all(isinstance(text, str) for text in _texts(model)):
        raise LoomError(f"{path}: no sound ONNX file: a name in it is not UTF-8 text")
    if not model.HasField("graph") or not model.graph.node:
        raise LoomError(f"{path}: no sound ONNX file: it has no graph with nodes")
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except Exception as error:  # whatever onnx says
            raise LoomError(f"{path}: its functions cannot be written out: {_reason(error)}") from None
    return model


def _texts(model: Any) -> Iterable[Any]:
    """Names in a file, which are bytes where they are no text."""
    graph = model.graph
    yield from (each.domain for each in model.opset_import)
    for node in [*graph.node, *(node for function in model.functions for node in function.node)]:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (each.name for each in node.attribute)
    for tensor in graph.initializer:
        yield tensor.name
        yield from (text for each in tensor.external_data for text in (each.key, each.value))
    for each in (*graph.input, *graph.output):
        yield each.name
        yield from (dimension.dim_param for dimension in each.type.tensor_type.shape.dim)


def dimensions(model: Any) -> dict[str, list[tuple[str, int]]]:
    """Names of the dimensions that have no size, with the inputs and the axes that they are of."""
    found: dict[str, list[tuple[str, int]]] = {}
    weights = {each.name for each in model.graph.initializer}
    for each in model.graph.input:
        for axis, dimension in enumerate(each.type.tensor_type.shape.dim if each.name not in weights else ()):
            label = dimension_name(each.name, axis, dimension)
            if label is not None:
                found.setdefault(label, []).append((each.name, axis))
    return found


def _numpy_type(kind: int) -> Any:
    import onnx

    return onnx.helper.tensor_dtype_to_np_dtype(kind)


def _reason(error: Exception) -> str:
    """What an error of somebody else's says, in one line."""
    lines: Iterable[str] = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)


__all__ = ["MOST_ELEMENTS", "MOST_SIZE", "OnnxModel", "OnnxNode", "OnnxTensor", "Values", "dimensions", "load_onnx"]
