"""Parameters of a model from its files: safetensors, npz or GGUF, under Hugging Face's names or the operators' own."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, NotSupported, nearest_name
from siliconloom.execution.walk import At
from siliconloom.execution.weights import Floats, Weights, labels, shapes
from siliconloom.models.families import family_of
from siliconloom.models.gguf import GgufTensor, is_gguf, read_gguf
from siliconloom.models.source import weight_files, weights_path
from siliconloom.workloads import Attention, Graph, Operator, Vector
from siliconloom.workloads.roles import Role

MOST_HEADER = 100_000_000
"""Bytes of a safetensors header, at most; the format's own limit."""
STORED: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
"""Formats of numbers in a safetensors file; bfloat16 is the upper half of a float32."""
INTERLEAVED = ".query_key_value.weight"
"""Ending of a tensor that GPT-NeoX and Falcon lay out head by head."""
SMALLEST, LARGEST = 1e-30, 1e30
"""The largest absolute value of a tensor lies between, so that scales and sums of it are numbers."""


class StoredTensor(Struct, frozen=True):
    """A tensor in a file, that is read when it is asked for."""

    shape: tuple[int, ...]
    format: str
    read: Callable[[], NDArray[Any]]


class StoredModel(NamedTuple):
    """Tensors by name; ``paired`` where rows of queries and keys lie as neighbours that turn against each other."""

    tensors: dict[str, StoredTensor]
    paired: bool = False


def stored_model(path: str) -> StoredModel:
    """All tensors of a GGUF file, of a folder's safetensors files, or of a file that `tensors_of` reads.

    Raises
    ------
    LoomError
        When something cannot be read, is damaged, or is there twice.
    """
    if Path(path).is_dir():
        found: dict[str, StoredTensor] = {}
        for file in weight_files(Path(path)):
            made = tensors_of(str(file))
            twice = next((name for name in made if name in found), None)
            if twice is not None:
                raise LoomError(f"{file}: {twice} stands in another file of the folder, too")
            found |= made
        return StoredModel(found)
    return _gguf(path) if is_gguf(path) else StoredModel(tensors_of(path))


def _gguf(path: str) -> StoredModel:
    """Tensors of a GGUF file under Hugging Face's names."""
    file = read_gguf(path)
    _, family = family_of(file)

    def stored(tensor: GgufTensor) -> StoredTensor:
        if family.turned(tensor):
            return StoredTensor(tensor.shape[::-1], "float32", lambda: tensor.read().T)
        return StoredTensor(tensor.shape, "float32", tensor.read)

    return StoredModel({family.name(name): stored(tensor) for name, tensor in file.tensors.items()}, family.paired)


def tensors_of(path: str) -> dict[str, StoredTensor]:
    """All tensors of a file by name.

    Raises
    ------
    LoomError
        When it cannot be read, or is neither safetensors nor npz.
    """
    try:
        with open(path, "rb") as file:
            beginning = file.read(8)
            size = Path(path).stat().st_size
    except OSError as error:
        raise LoomError(f"{path}: {error.strerror or error}") from None
    return _npz(path) if beginning[:2] == b"PK" else _safetensors(path, beginning, size)


def _npz(path: str) -> dict[str, StoredTensor]:
    if not zipfile.is_zipfile(path):
        raise LoomError(f"{path}: no npz file that can be read: it is no zip archive")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise LoomError(f"{path}: no npz file that can be read: {error}") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise LoomError(f"{path}: no npz file that can be read: its member {name} is no array")
    return {name: StoredTensor(x.shape, x.dtype.name, lambda x=x: x) for name, x in arrays.items()}  # type: ignore[misc]


def _safetensors(path: str, beginning: bytes, size: int) -> dict[str, StoredTensor]:
    """Tensors of a safetensors file: the length of a header in JSON, that header, and their bytes."""
    length = int.from_bytes(beginning, "little")
    if len(beginning) < 8 or not 2 <= length <= min(MOST_HEADER, size - 8):
        raise LoomError(f"{path}: neither a safetensors file nor an npz file")
    with open(path, "rb") as file:
        file.seek(8)
        try:
            header = json.loads(file.read(length), object_pairs_hook=_once)
            entries = {str(name): entry for name, entry in header.items() if name != "__metadata__"}
        except LoomError as error:
            raise LoomError(f"{path}: no sound safetensors file: {error}") from None
        except (ValueError, AttributeError, RecursionError):
            raise LoomError(f"{path}: no safetensors file: its header is not an object in JSON") from None
    made = {name: _entry(path, name, entry, 8 + length, size) for name, entry in entries.items()}
    end = 0
    for begin, after, name in sorted((*entry["data_offsets"], name) for name, entry in entries.items()):
        if begin != end:
            rule = (
                "overlaps what is before it"
                if begin < end
                else f"leaves {begin - end:,} B before it that nothing holds"
            )
            raise LoomError(f"{path}: no sound safetensors file: {name} {rule}")
        end = after
    if end != size - 8 - length:
        raise LoomError(f"{path}: no sound safetensors file: {size - 8 - length - end:,} B behind its last tensor")
    return made


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, each of whose names stands once."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise LoomError(f"its header has {twice} twice")
    return made


def _entry(path: str, name: str, entry: Any, start: int, size: int) -> StoredTensor:
    try:
        stored, shape = str(entry["dtype"]), tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        sound = all(type(n) is int and n >= 0 for n in (*shape, begin, end)) and begin <= end <= size - start
    except (KeyError, TypeError, ValueError):
        sound, stored, shape, begin, end = False, "", (), 0, 0
    if not sound:
        raise LoomError(f"{path}: no sound safetensors file: {name} has no shape, or lies outside of the file")
    kind = STORED.get(stored)
    count = 1
    for extent in shape:
        count *= extent
    if kind is not None and count * kind.itemsize != end - begin:
        rule = (
            f"{name} has {end - begin:,} B, and its shape {list(shape)} in {stored} takes {count * kind.itemsize:,} B"
        )
        raise LoomError(f"{path}: no sound safetensors file: {rule}")

    def read() -> NDArray[Any]:
        assert kind is not None
        raw = np.memmap(path, kind, "r", start + begin, shape) if count else np.zeros(shape, kind)
        return (raw.astype(np.uint32) << 16).view(np.float32) if stored == "BF16" else np.asarray(raw)

    return StoredTensor(shape, stored, read)


# Names ---------------------------------------------------------------------------------------------------------------


class ParameterSource(Struct, frozen=True):
    """Where a parameter comes from: tensors by name, of these shapes, and what is made of them."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    join: Callable[[list[NDArray[Any]]], NDArray[Any]]


def one(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """The only tensor, as it is."""
    return arrays[0]


def flipped(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Tensors of rows of outputs, one behind the other, as columns."""
    return np.concatenate(arrays).T


def stacked(count: int) -> Callable[[list[NDArray[Any]]], NDArray[Any]]:
    """Of so many tensors each an expert's, one expert after the other: its rows of outputs as columns."""

    def join(arrays: list[NDArray[Any]]) -> NDArray[Any]:
        return np.stack([flipped(arrays[start : start + count]) for start in range(0, len(arrays), count)])

    return join


def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Tensors one behind the other."""
    return np.concatenate(arrays)


def interleaved(rows: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Outputs of every head with its two halves, which Hugging Face turns against each other, as neighbours."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return np.asarray(heads.swapaxes(1, 2).reshape(rows.shape))


class FileWeights(Weights):
    """Parameters of a file, checked by name, shape and format before any of them is read.

    Raises
    ------
    LoomError
        For a file that cannot be read; a parameter that is missing, has another shape or format; one too many.
    """

    def __init__(self, graph: Graph, path: str) -> None:
        super().__init__(graph)
        path = weights_path(path)
        self.path, (self.tensors, paired) = path, stored_model(path)
        names = set(self.tensors)
        mixed = next((name for name in sorted(names) if name.endswith(INTERLEAVED)), None)
        if mixed is not None:
            raise NotSupported(f"weights whose queries, keys and values take turns by head ({path}: {mixed})")
        if any(name.endswith("wte.weight") for name in names):
            self._named: _Named = _Gpt2(graph, names)
        elif any(name.endswith("embed_tokens.weight") for name in names):
            self._named = _Llama(graph, names, paired)
        elif any(name.endswith("word_embeddings.weight") for name in names):
            self._named = _Bert(graph, names)
        else:
            self._named = _Own(graph, names)
        self._check()

    def find(self, at: At, operator: Operator, what: str, shape: tuple[int, ...]) -> Floats:
        source = self._named.source(at, operator, what, shape)
        return source.join([self._values(name) for name in source.names])

    def _values(self, name: str) -> Floats:
        """Values of a tensor; those of 16 bits as 32, as scales of columns are more than 16 bits hold."""
        array = self.tensors[name].read()
        array = array if array.dtype.itemsize > 2 else array.astype(np.float32)
        if not np.isfinite(array).all():
            raise LoomError(f"{self.path}: {name} has values that are not finite")
        largest = float(np.abs(array).max(initial=0.0))
        if largest and not SMALLEST <= largest <= LARGEST:
            rule = f"largest absolute value must be 0, or from {SMALLEST:.0e} to {LARGEST:.0e}"
            raise LoomError(f"{self.path}: {name}: its {rule} (got {largest:.3g})")
        return array

    def _check(self) -> None:
        used: set[str] = set()
        for operator in self.graph.operators():
            for what, shape in shapes(operator).items():
                for execution in range(operator.repeat):
                    source = self._named.source(At(operator.name, execution), operator, what, shape)
                    for name, wanted in zip(source.names, source.shapes, strict=True):
                        self._check_one(name, wanted)
                        used.add(name)
        for name in sorted(set(self.tensors) - used):
            self._check_tied(name, used)
            if not self._named.ignored(name):
                near = nearest_name(name, used)
                hint = f"; did you mean {near}?" if near else ""
                raise LoomError(f"{self.path}: {self.graph.name} has no parameter {name}{hint}")

    def _check_tied(self, name: str, used: set[str]) -> None:
        """A head beside the table that it shares is that table."""
        table = next((each for each in used if each.endswith(("wte.weight", "embed_tokens.weight"))), None)
        if not name.endswith("lm_head.weight") or not self._named.tied or table is None:
            return
        head, rows = self.tensors[name], self.tensors[table]
        if head.shape != rows.shape or not np.array_equal(head.read(), rows.read()):
            rule = f"{name} is another matrix than {table}, and the head of {self.graph.name} is its table of tokens"
            raise LoomError(f"{self.path}: {rule}")

    def _check_one(self, name: str, wanted: tuple[int, ...]) -> None:
        found = self.tensors.get(name)
        if found is None:
            near = nearest_name(name, set(self.tensors))
            hint = f"; did you mean {near}?" if near else ""
            raise LoomError(f"{self.path}: {self.graph.name} needs {name}, which is not there{hint}")
        if found.format not in STORED and not found.format.startswith("float"):
            raise LoomError(f"{self.path}: {name} is {found.format}; weights are floating point of 16 to 64 bits")
        if found.shape != wanted:
            raise LoomError(
                f"{self.path}: {name} is of shape {list(found.shape)}, and {self.graph.name} needs {list(wanted)}"
            )


class _Named:
    """Which tensors a parameter comes from."""

    def __init__(self, graph: Graph, names: set[str]) -> None:
        self.graph, self.names, self.labels = graph, names, labels(graph)

    def source(self, at: At, operator: Operator, what: str, shape: tuple[int, ...]) -> ParameterSource:
        """Tensors of one parameter of an execution."""
        raise NotImplementedError

    def ignored(self, name: str) -> bool:
        """Whether a tensor that nothing needs may be there."""
        return False

    def place(self, at: At) -> tuple[str, int]:
        """What an operator is, and its layer."""
        label, first, step = self.labels[at.name]
        return label, first + at.execution * step

    def unknown(self, operator: Operator) -> LoomError:
        """Make the error for an operator that a family does not have."""
        return LoomError(f"{self.graph.name} is not of the family whose weights these are: operator {operator.name}")

    @property
    def tied(self) -> bool:
        """Whether the head is the table of tokens."""
        return any(isinstance(o, Vector) and o.tied for o in self.graph.operators())


class _Own(_Named):
    """The operators' own names: ``layer.qkv.weight``, with the executions as the first dimension of those repeated."""

    def source(self, at: At, operator: Operator, what: str, shape: tuple[int, ...]) -> ParameterSource:
        whole = (operator.repeat, *shape) if operator.repeat > 1 else shape
        number = at.execution

        def pick(arrays: list[NDArray[Any]]) -> NDArray[Any]:
            return np.asarray(arrays[0][number]) if operator.repeat > 1 else arrays[0]

        return ParameterSource((f"{operator.name}.{what}",), (whole,), pick)


class _Gpt2(_Named):
    """GPT-2 in transformers: weights are (inputs, outputs), queries, keys and values side by side."""

    PLACES: ClassVar[dict[str, str]] = {
        "norm.0": "h.{}.ln_1",
        "norm.1": "h.{}.ln_2",
        "qkv.0": "h.{}.attn.c_attn",
        "row_parallel.0": "h.{}.attn.c_proj",
        "column_parallel.0": "h.{}.mlp.c_fc",
        "row_parallel.1": "h.{}.mlp.c_proj",
        "positions": "wpe",
        "table": "wte",
        "final_norm": "ln_f",
        "head": "lm_head",
    }
    BUFFERS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")

    def __init__(self, graph: Graph, names: set[str]) -> None:
        super().__init__(graph, names)
        self.prefix = "transformer." if any(name.startswith("transformer.") for name in names) else ""

    def source(self, at: At, operator: Operator, what: str, shape: tuple[int, ...]) -> ParameterSource:
        label, layer = self.place(at)
        if label not in self.PLACES:
            raise self.unknown(operator)
        name = self.prefix + self.PLACES[label].format(layer)
        if label == "head":  # outputs are rows
            name = f"{self.prefix}wte" if self.tied else "lm_head"
            return ParameterSource((f"{name}.{what}",), (shape[::-1],), flipped if what == "weight" else one)
        return ParameterSource((f"{name}.{'bias' if what in ('bias', 'beta') else 'weight'}",), (shape,), one)

    def ignored(self, name: str) -> bool:
        own = name.removeprefix(self.prefix)
        return bool(self.BUFFERS.fullmatch(own)) or (self.tied and own == "lm_head.weight")


class _Llama(_Named):
    """Llama, Mistral, Mixtral and Qwen2 in transformers: weights are (outputs, inputs), each projection by itself."""

    PLACES: ClassVar[dict[str, tuple[str, ...]]] = {
        "norm.0": ("input_layernorm",),
        "norm.1": ("post_attention_layernorm",),
        "qkv.0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "row_parallel.0": ("self_attn.o_proj",),
        "column_parallel.0": ("mlp.gate_proj", "mlp.up_proj"),
        "row_parallel.1": ("mlp.down_proj",),
        "router.0": ("block_sparse_moe.gate",),
    }
    EXPERTS: ClassVar[dict[str, tuple[str, ...]]] = {"expert_column.0": ("w1", "w3"), "expert_row.0": ("w2",)}
    ALONE: ClassVar[dict[str, str]] = {"table": "embed_tokens", "final_norm": "norm", "head": "lm_head"}

    def __init__(self, graph: Graph, names: set[str], paired: bool) -> None:
        super().__init__(graph, names)
        self.prefix = "model." if any(name.startswith("model.") for name in names) else ""
        attention = next(o for o in graph.operators() if isinstance(o, Attention))
        self.dim = attention.head_dim
        self.widths = attention.heads * self.dim, attention.kv_heads * self.dim, attention.kv_heads * self.dim
        self.turned = not paired and any(o.role is Role.ROPE for o in graph.operators())

    def source(self, at: At, operator: Operator, what: str, shape: tuple[int, ...]) -> ParameterSource:
        label, layer = self.place(at)
        ending = "bias" if what in ("bias", "beta") else "weight"
        if label in self.ALONE:
            name = self.prefix + self.ALONE[label]
            if label == "head":
                name = f"{self.prefix}embed_tokens" if self.tied else "lm_head"
            turns = label == "head" and what == "weight"
            return ParameterSource((f"{name}.{ending}",), (shape[::-1] if turns else shape,), flipped if turns else one)
        if label in self.EXPERTS:
            return self._experts(label, layer, shape)
        if label not in self.PLACES:
            raise self.unknown(operator)
        names = tuple(f"{self.prefix}layers.{layer}.{each}.{ending}" for each in self.PLACES[label])
        if what in ("gamma", "beta"):
            return ParameterSource(names, (shape,), one)
        outputs = shape[-1]
        parts = self.widths if label == "qkv.0" else (outputs // len(names),) * len(names)
        inputs = shape[:-1]
        join = flipped if what == "weight" else joined
        if label == "qkv.0" and self.turned:
            return ParameterSource(names, tuple((part, *inputs) for part in parts), self._neighbours(join))
        return ParameterSource(names, tuple((part, *inputs) for part in parts), join)

    def _experts(self, label: str, layer: int, shape: tuple[int, ...]) -> ParameterSource:
        """Matrices of all experts."""
        count, inputs, outputs = shape
        own, at = self.EXPERTS[label], f"{self.prefix}layers.{layer}.block_sparse_moe.experts"
        names = tuple(f"{at}.{number}.{each}.weight" for number in range(count) for each in own)
        return ParameterSource(names, ((outputs // len(own), inputs),) * len(names), stacked(len(own)))

    def _neighbours(
        self, join: Callable[[list[NDArray[Any]]], NDArray[Any]]
    ) -> Callable[[list[NDArray[Any]]], NDArray[Any]]:
        def made(arrays: list[NDArray[Any]]) -> NDArray[Any]:
            query, key, value = arrays
            return join([interleaved(query, self.dim), interleaved(key, self.dim), value])

        return made

    def ignored(self, name: str) -> bool:
        return name.endswith("rotary_emb.inv_freq") or (self.tied and name == "lm_head.weight")


class _Bert(_Named):
    """BERT and RoBERTa in transformers: weights are (outputs, inputs), and heads behind the pooler are left out."""

    PLACES: ClassVar[dict[str, tuple[str, ...]]] = {
        "table": ("embeddings.word_embeddings",),
        "positions": ("embeddings.position_embeddings",),
        "types": ("embeddings.token_type_embeddings",),
        "embedding": ("embeddings.LayerNorm",),
        "qkv.0": tuple(f"encoder.layer.{{}}.attention.self.{name}" for name in ("query", "key", "value")),
        "row_parallel.0": ("encoder.layer.{}.attention.output.dense",),
        "norm.0": ("encoder.layer.{}.attention.output.LayerNorm",),
        "column_parallel.0": ("encoder.layer.{}.intermediate.dense",),
        "row_parallel.1": ("encoder.layer.{}.output.dense",),
        "norm.1": ("encoder.layer.{}.output.LayerNorm",),
        "whole": ("pooler.dense",),
    }
    HEADS = ("cls.", "lm_head.", "classifier.", "qa_outputs.")
    BUFFERS = "embeddings.position_ids"

    def __init__(self, graph: Graph, names: set[str]) -> None:
        super().__init__(graph, names)
        self.prefix = next((p for p in ("bert.", "roberta.") if any(name.startswith(p) for name in names)), "")
        self.older = any(name.endswith("LayerNorm.gamma") for name in names)
        """Norms have the names of their first checkpoints."""

    def source(self, at: At, operator: Operator, what: str, shape: tuple[int, ...]) -> ParameterSource:
        label, layer = self.place(at)
        if label not in self.PLACES:
            raise self.unknown(operator)
        ending = "bias" if what in ("bias", "beta") else "weight"
        if what in ("gamma", "beta") and self.older:
            ending = what
        names = tuple(f"{self.prefix}{each.format(layer)}.{ending}" for each in self.PLACES[label])
        if what not in ("weight", "bias"):
            return ParameterSource(names, (shape,), one)
        part = shape[-1] // len(names), *shape[:-1]
        return ParameterSource(names, (part,) * len(names), flipped if what == "weight" else joined)

    def ignored(self, name: str) -> bool:
        return name.removeprefix(self.prefix) == self.BUFFERS or name.startswith(self.HEADS)


__all__ = ["FileWeights", "StoredModel", "StoredTensor", "interleaved", "stored_model", "tensors_of"]
