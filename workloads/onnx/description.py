"""Describes how an ONNX file is run, and makes a graph of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from siliconloom.arch.datatype import DataType
from siliconloom.arch.document import Description, Document
from siliconloom.arch.errors import LoomError
from siliconloom.models.onnx import MOST_SIZE, OnnxModel, dimensions, load_onnx
from siliconloom.workloads.fields import Count, OperandFormat, Title
from siliconloom.workloads.graph import Graph, Phase
from siliconloom.workloads.onnx.attention import fuse_attention, fuse_rotary
from siliconloom.workloads.onnx.blocks import folded
from siliconloom.workloads.onnx.functions import fuse_functions, fuse_gates, fuse_scales
from siliconloom.workloads.onnx.net import OnnxNet
from siliconloom.workloads.onnx.operators import OnnxOperators
from siliconloom.workloads.onnx.products import fuse_biases

Size = Annotated[int, Field(ge=1, le=MOST_SIZE, strict=True)]
NAMES = {
    "batch": ("batch", "batch_size", "bs", "N", "b"),
    "sequence": ("sequence", "sequence_length", "seq", "seq_len", "seq_length", "seqlen", "length", "tokens", "S", "T"),
}
"""What exporters call the dimensions that are keys here."""


class OnnxDescription(Description):
    """A model in an ONNX file, and the sizes of what its inputs leave open.

    ``file`` is the path of the file, from the folder of the description. ``batch`` and ``sequence`` are sizes of the
    dimensions of that name (or batch_size, N; seq_len, sequence_length, and their like), ``dimensions`` those of any
    others by their names. ``precision`` is the format of all operands; the file's own where it says nothing.
    """

    kind: Literal["onnx"]
    file: Annotated[str, Field(min_length=1, max_length=4096)]
    name: Title | None = None
    description: str = ""
    source: str = ""
    batch: Count | None = None
    sequence: Size | None = None
    dimensions: dict[str, Size] = Field(default={})
    precision: OperandFormat | None = None


def onnx_document(path: Path) -> Document:
    """Description of a bare ONNX file."""
    return Document({"kind": "onnx", "file": path.name}, {}, str(path))


def onnx_graph(document: Document, title: str) -> Graph:
    """Graph of a document of kind ``onnx``: operators with the names of the file's nodes, equal layers as one block.

    Raises
    ------
    LoomError
        For a file that cannot be read, a dimension without a size, a node that is no operator here.
    """
    for keys in document.assigned:
        if keys[0] in ("phase", "context", "model", "layers", "cache_length", "cache_precision", "operator_precision"):
            raise document.error("not supported: an ONNX file is run as it is, and has no such key", keys)
    entry = document.validate(OnnxDescription)
    path = str(Path(document.source).parent / entry.file)
    loaded = load_onnx(path)
    model = OnnxModel(path, loaded, _sizes(document, entry, dimensions(loaded), path))
    net = OnnxNet(model)
    for fuse in (fuse_functions, fuse_scales, fuse_rotary, fuse_attention, fuse_biases, fuse_gates):
        fuse(net)
    made = OnnxOperators(net, entry.precision)
    dataflow = folded(made.build())
    if not len(dataflow):
        raise LoomError(f"{path}: no node of it is work: all results are constants, or its inputs in another order")
    batch, tokens = _tokens(model)
    formats = Counter[DataType]()
    for operator in dataflow.operators():
        formats[operator.precision] += operator.macs * operator.repeat + 1
    return Graph(
        name=entry.name or title,
        phase=Phase.PREFILL,
        precision=entry.precision or formats.most_common(1)[0][0],
        explicit_precision=entry.precision is not None,
        batch=batch,
        tokens=tokens,
        dataflow=dataflow,
        notes=tuple(made.notes),
    )


def _sizes(document: Document, entry: OnnxDescription, open_: dict[str, Any], path: str) -> dict[str, int]:
    """Sizes of dimensions by the names that the file has for them; refuses those that it has not."""
    sizes: dict[str, int] = {}
    shown = f"its open dimensions are {', '.join(open_)}" if open_ else "its inputs have all sizes"
    for key, names in NAMES.items():
        value = getattr(entry, key)
        found = [name for name in open_ if name in names]
        if value is not None and not found:
            raise document.error(f"no dimension of {path} is called so; {shown}", (key,), value=value)
        if value is not None:
            sizes |= dict.fromkeys(found, value)
    for name, size in entry.dimensions.items():
        if name not in open_:
            raise document.error(f"no dimension of {path} has this name; {shown}", ("dimensions", name), value=size)
        if name in sizes:
            key = next(key for key, names in NAMES.items() if name in names)
            raise document.error(f"give this dimension here or as {key}", ("dimensions", name), value=size)
        sizes[name] = size
    return sizes


def _tokens(model: OnnxModel) -> tuple[int, int]:
    """Sequences, or images, and tokens of the first input: of whole numbers one each, of others one an image."""
    first = model.tensors[model.inputs[0]] if model.inputs else None
    if first is None or not first.shape:
        return 1, 1
    batch = first.shape[0]
    if not first.format and len(first.shape) == 2:
        return batch, first.elements
    return batch, batch * first.shape[1] if len(first.shape) == 3 else batch


__all__ = ["OnnxDescription", "onnx_document", "onnx_graph"]
