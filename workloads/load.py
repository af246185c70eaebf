"""Finds, reads and checks a workload: a list, a transformer, an ONNX file, or a bare Hugging Face ``config.json``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import Field, TypeAdapter

from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.document import Description, Document, find_file
from siliconloom.arch.errors import NotSupported, Position
from siliconloom.workloads.architecture import Architecture, Encoder, LatentAttention, MixtureOfExperts
from siliconloom.workloads.attention import TokenStep
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.encoder_decoder import resting
from siliconloom.workloads.fields import Count, Title
from siliconloom.workloads.graph import Graph, Phase
from siliconloom.workloads.huggingface import read_architecture
from siliconloom.workloads.names import LIBRARY
from siliconloom.workloads.operators import Attention, Gemm, Operator, Vector
from siliconloom.workloads.precision import (
    Block,
    CacheName,
    Compression,
    Density,
    Group,
    PrecisionName,
    SparsityName,
    Stated,
    Unpacked,
    check_compression,
    check_groups,
    formats_of,
    group_of,
    sparsity_of,
)
from siliconloom.workloads.transformer import forward_graph

DEFAULT_SEQUENCE = 2048

Length = Annotated[int, Field(ge=1, le=2**24, strict=True)]


class Transformer(Description):
    """A model and how to run it.

    ``model`` is the content of a Hugging Face ``config.json``. ``sequence`` are the tokens of each sequence in
    prefill and training, ``context`` the keys that the last new token of a decode step attends to, its own included;
    both default to 2048 or the model's longest sequence, and an image's is as long as its patches make it.
    In prefill ``context`` are tokens that lie in the cache already, which the ``sequence`` new ones attend to as well
    (none); in decode ``sequence`` are the new tokens of each sequence, the last ones of ``context`` (1). Of a file that
    leaves the phase open, and gives the lengths of both, neither is read so: ``--set`` asks for it.
    Of a model with an encoder ``sequence`` are the encoder's tokens, or positions, ``decoder_sequence`` the decoder's
    in prefill (1), and ``context`` those of the decoder alone; ``encoder_sequence`` are the encoder's positions that a
    decode step attends to, by default as many as ``sequence`` in prefill.
    ``cache_length`` are the positions that the cache has room for, where those are more. ``training_batch`` are the
    sequences of a training step, where ``--set`` gives no ``batch``. ``layers`` keeps only the first so many.
    ``experts: all`` lets every expert compute every token, with the weight zero where it is not chosen.
    ``sample: greedy`` lets the token of the largest logit follow the head, in prefill and decode.
    ``operator_precision`` maps shell-style patterns of operator names (``*.attention``) to formats. ``weight_group``
    are the rows of a group of packed weights, which share a scale (128 where W4A16 or W8A16 says no number); a file may
    state them for whoever packs its weights. ``weight_compression`` are the bytes in memory of a byte of weights that
    are compressed without loss (0.68 for DFloat11's of bf16): of all products but routers, and but a head whose rows
    an embedding reads. ``weight_sparsity`` says which of a product's weights are zeros that are not stored, in all but
    the head and routers: ``2of4`` (2:4), or ``block``, of whose blocks of ``weight_block`` rows and columns (128) the
    share ``weight_density`` is kept. ``cache_precision`` is the format that keys and values are kept in, where that has
    fewer bits than attention's: whole numbers with a scale and an offset for each head's key and value of a position.
    """

    kind: Literal["transformer"]
    name: Title | None = None
    description: str = ""
    source: str = ""
    model: dict[str, Any]
    phase: Phase = Phase.PREFILL
    batch: Count = 1
    training_batch: Count | None = None
    sequence: Length | None = None
    decoder_sequence: Length | None = None
    encoder_sequence: Length | None = None
    context: Length | None = None
    cache_length: Length | None = None
    layers: Length | None = None
    experts: Literal["all"] | None = None
    sample: Literal["greedy"] | None = None
    precision: PrecisionName | None = None
    operator_precision: dict[str, PrecisionName] = Field(default={})
    weight_group: Group | None = None
    weight_compression: Compression | None = None
    weight_sparsity: SparsityName | None = None
    weight_density: Density | None = None
    weight_block: Block | None = None
    cache_precision: CacheName | None = None


def load_workload(name: str, overrides: list[tuple[str, str]] | None = None) -> Graph:
    """Read a workload from a file or the library.

    Parameters
    ----------
    name
        Path of a YAML or JSON file, of an ONNX or GGUF file or of a Hugging Face folder, or name of a library entry. A
        mapping without ``kind`` that has a ``model_type`` is taken for a Hugging Face configuration, as if it stood
        under ``model`` in a description.
    overrides
        Pairs of key path and value, such as ``("phase", "decode")`` or ``("model.vocab_size", "50304")``.

    Raises
    ------
    LoomError
        When there is no such file, or the description breaks a rule.
    """
    document, title = workload_document(name)
    return read_workload(document, title, overrides)


def workload_document(name: str) -> tuple[Document, str]:
    """Description of a workload by file or library name, and its name where it says none; see `load_workload`."""
    path = find_file(name, LIBRARY, "workload", suffixes=(".yaml", ".onnx", ".gguf"))
    if path.suffix == ".onnx":
        from siliconloom.workloads.onnx.description import onnx_document

        return onnx_document(path), _title(path.stem)
    found = None if path.parent == LIBRARY else _described(path)
    document, path = (Document.load(path), path) if found is None else (found, Path(found.source))
    if "kind" not in document.data and ("model_type" in document.data or path.suffix == ".json"):
        document = _wrapped(document, path)
    return document, _title(path.name.removesuffix(path.suffix).removesuffix(".config"))


def _described(path: Path) -> Document | None:
    """Configuration of a model's files, which no library's description needs to be asked for."""
    from siliconloom.models.source import described

    return described(path)


def read_workload(document: Document, title: str, overrides: list[tuple[str, str]] | None = None) -> Graph:
    """As `load_workload`, of a description that is read already; ``title`` is its name where it says none."""
    described = set(document.data) if "phase" in document.data else set()
    document.override(overrides or [], "workload.")
    kind = document.expect_kind(["transformer", "gemms", "convolutions", "operators", "onnx"])
    if kind == "operators":
        from siliconloom.workloads.operator_lists import operator_graph

        return operator_graph(document, title)
    if kind == "onnx":
        from siliconloom.workloads.onnx.description import onnx_graph

        return onnx_graph(document, title)
    if kind != "transformer":
        from siliconloom.workloads.lists import convolution_graph, gemm_graph

        return gemm_graph(document, title) if kind == "gemms" else convolution_graph(document, title)
    changed = {path.partition(".")[0] for path, _ in overrides or []}
    return _transformer(document, title, set() if "phase" in changed else described, changed)


def workload_schema() -> dict[str, Any]:
    """JSON Schema of a workload description: one of the kinds."""
    from siliconloom.workloads.lists import ConvolutionList, GemmList
    from siliconloom.workloads.onnx.description import OnnxDescription
    from siliconloom.workloads.operator_lists import OperatorList

    kinds: TypeAdapter[Any] = TypeAdapter(
        Annotated[
            Transformer | GemmList | ConvolutionList | OperatorList | OnnxDescription, Field(discriminator="kind")
        ]
    )
    return kinds.json_schema()


def _wrapped(document: Document, path: Path) -> Document:
    """Put a bare configuration under the key ``model``, keeping positions."""
    positions = {("model", *key): position for key, position in document.positions.items()}
    positions[()] = Position(document.source, 1, 1)
    data: dict[str, Any] = {"kind": "transformer", "model": document.data}
    origin = document.data.get("_name_or_path")
    if isinstance(origin, str) and origin.strip("/."):
        data["name"] = _title(origin.rstrip("/").rpartition("/")[2])
    elif path.name == "config.json":
        data["name"] = _title(path.absolute().parent.name)
    return Document(data, positions, document.source)


def _title(text: str) -> str:
    """A name of somebody else's choice as one that a workload may have."""
    return re.sub(r"[^A-Za-z0-9 ._/+-]", "_", text)[:200].lstrip(" ._/+-") or "workload"


OTHER_PHASES: dict[Phase, dict[str, str]] = {
    Phase.PREFILL: {
        "encoder_sequence": "encoder_sequence in prefill; sequence is the length of the encoder's input",
        "training_batch": "training_batch in prefill; set batch",
    },
    Phase.DECODE: {
        "decoder_sequence": "decoder_sequence in decode, which makes one token; context is the decoder's length",
        "training_batch": "training_batch in decode; set batch",
    },
    Phase.TRAINING: {
        "context": "context in training; sequence is the length of a sequence",
        "cache_length": "cache_length in training, which keeps no cache",
        "cache_precision": "cache_precision in training, which keeps no cache",
        "sample": "sample in training, which has no next token",
        "experts": "experts that all compute every token in training",
    },
}
"""Keys that mean nothing in a phase, and what they would ask for."""


def _refuse_other_phases(document: Document, entry: Transformer, meant: set[str]) -> None:
    """Refuse keys of other phases: those of ``--set``, and those of a file that states the phase that runs.

    A file that leaves the phase open, as the library's do, serves all of them: it may give the lengths of each, and
    ``--set phase`` picks one. So does a file whose phase is set to another.
    """
    for key, what in OTHER_PHASES[entry.phase].items():
        if key in meant and getattr(entry, key) is not None:
            raise document.error(f"not supported: {what}", (key,), value=document.data[key])


def _transformer(document: Document, title: str, described: set[Any], changed: set[str]) -> Graph:
    entry = document.validate(Transformer)
    _refuse_other_phases(document, entry, described | changed)
    if entry.phase is Phase.TRAINING and entry.training_batch is not None:
        if {"batch", "training_batch"} <= changed:
            raise document.error("give batch or training_batch", ("training_batch",), value=entry.training_batch)
        if "batch" not in changed:
            entry = entry.model_copy(update={"batch": entry.training_batch})
    model = _kept_layers(document, entry, read_architecture(document, ("model",)))
    if entry.experts is not None:
        model = _with_all_experts(document, model)
    run = _run(document, entry, model, described | changed)
    precision, packing, patterns = _formats(document, entry, model, "weight_group" in changed)
    stated = [p for p in (entry.precision, *entry.operator_precision.values()) if p is not None]
    check_compression(document, stated, entry.weight_compression, entry.phase)
    unpacked = Unpacked(entry.weight_compression, sparsity_of(document, entry, entry.phase))
    sample = entry.sample is not None and entry.phase is not Phase.TRAINING
    if sample and (model.pooler or model.classes):
        end = "pooler" if model.pooler else "classifier"
        raise document.error(f"{model.model_type} has a {end} and no head to sample from", ("sample",))
    made = partial(forward_graph, model, sample=sample, packing=packing, unpacked=unpacked)
    dataflow, rest = made(run, precision, patterns), tuple[Operator, ...]()
    if model.encoder is not None and run.phase is Phase.DECODE:
        prompt = replace(run, phase=Phase.PREFILL, kv_len=1, room=None)
        rest = resting(made(prompt, precision, patterns), dataflow)
    encoded = run.batch * run.source if run.phase is Phase.PREFILL else 0
    graph = Graph(
        name=entry.name or title,
        phase=entry.phase,
        precision=precision,
        explicit_precision=entry.precision is not None and entry.precision.states_operands,
        batch=run.batch,
        tokens=run.tokens + encoded,
        dataflow=dataflow,
        resting=rest,
        images=run.batch if model.patches is not None else 0,
        notes=_notes(model, run),
    )
    _check_patterns(document, entry, (*graph.operators(), *rest))
    _check_cache(document, entry, dataflow)
    check_groups(document, [*graph.operators(), *rest])
    if entry.phase is Phase.TRAINING:
        from siliconloom.workloads.training import training_graph

        return replace(graph, dataflow=training_graph(dataflow, graph.blocks(), model.hidden))
    return graph


def _kept_layers(document: Document, entry: Transformer, model: Architecture) -> Architecture:
    if entry.layers is None:
        return model
    encoder = model.encoder
    least = len(model.layers) if encoder is None else min(len(model.layers), len(encoder.layers))
    if entry.layers > least:
        which = "model" if encoder is None else "encoder" if least < len(model.layers) else "decoder"
        raise document.error(f"the {which} has {least} layers", ("layers",), value=entry.layers)
    if encoder is not None:
        encoder = replace(encoder, layers=encoder.layers[: entry.layers])
    return replace(model, layers=model.layers[: entry.layers], encoder=encoder)


def _with_all_experts(document: Document, model: Architecture) -> Architecture:
    """The same model, every expert of which computes every token."""
    layers = tuple(
        replace(layer, feed_forward=replace(layer.feed_forward, dense=True))
        if isinstance(layer.feed_forward, MixtureOfExperts)
        else layer
        for layer in model.layers
    )
    if layers == model.layers:
        raise document.error("the model has no experts", ("experts",), value="all")
    return replace(model, layers=layers)


def _run(document: Document, entry: Transformer, model: Architecture, meant: set[str]) -> TokenStep:
    """How the model is run; ``meant`` are the keys that are said of this phase."""
    added = {Phase.PREFILL: entry.context, Phase.DECODE: entry.sequence, Phase.TRAINING: None}[entry.phase]
    added = added if {Phase.PREFILL: "context", Phase.DECODE: "sequence"}.get(entry.phase) in meant else None
    if added is not None:
        _refuse_chunks(document, entry, model)
    if model.encoder is not None:
        return _run_decoder(document, entry, model, _source(document, entry, model, model.encoder))
    for key in ("decoder_sequence", "encoder_sequence"):
        if getattr(entry, key) is not None:
            raise document.error(f"{model.model_type} is no encoder with a decoder", (key,), value=getattr(entry, key))
    default = model.length or min(DEFAULT_SEQUENCE, model.max_length or model.trained_length or DEFAULT_SEQUENCE)
    if model.patches is not None and entry.sequence not in (None, model.length):
        cut = f"image_size {model.patches.image}, patch_size {model.patches.patch}"
        rule = f"must be {model.length}: {model.patches.count} patches of an image ({cut}) and a class token"
        raise document.error(rule, ("sequence",), value=entry.sequence)
    lengths = ("sequence", entry.sequence), ("context", entry.context), ("cache_length", entry.cache_length)
    for key, length in lengths:
        if length is not None and model.max_length is not None and length > model.max_length:
            raise document.error(
                f"the model has learned positions for {model.max_length} tokens only", (key,), value=length
            )
    if model.recurrent:
        _refuse_cache(document, entry, model)
    if entry.phase is Phase.DECODE:
        if not model.causal:
            raise document.error(
                f"{model.model_type} is an encoder and does not decode; use prefill",
                ("phase",),
                value=entry.phase.value,
            )
        length, new = entry.context or default, added or 1
        if new > length:
            rule = f"the new tokens are the last ones of context, {length}"
            raise document.error(rule, ("sequence",), value=new)
    else:
        new = entry.sequence or default
        length = new + (added or 0)
        if model.max_length is not None and length > model.max_length:
            rule = f"{added} tokens of context and {new} new ones; the model has learned positions for"
            raise document.error(f"{rule} {model.max_length} tokens only", ("context",), value=added)
    room = entry.cache_length if entry.phase is not Phase.TRAINING else None
    if room is not None and not model.causal:
        raise document.error(f"{model.model_type} is an encoder and keeps no cache", ("cache_length",), value=room)
    if room is not None and any(isinstance(layer.attention, LatentAttention) for layer in model.layers):
        raise NotSupported("cache_length of a latent cache")
    if room is not None and room < length:
        raise document.error(f"the cache must have room for {length} positions", ("cache_length",), value=room)
    cache = _cache_format(document, entry, model)
    return TokenStep(phase=entry.phase, batch=entry.batch, q_len=new, kv_len=length, room=room, cache=cache)


def _source(document: Document, entry: Transformer, model: Architecture, encoder: Encoder) -> int:
    """Positions of each sequence of the encoder."""
    if entry.phase is Phase.TRAINING:
        raise document.error(f"not supported: training of {model.model_type}, an encoder with a decoder", ("phase",))
    key, length = "sequence", entry.sequence
    if entry.phase is Phase.DECODE and entry.encoder_sequence is not None:
        key, length = "encoder_sequence", entry.encoder_sequence
    if encoder.frames is None:
        return length or min(DEFAULT_SEQUENCE, model.trained_length or DEFAULT_SEQUENCE)
    positions, count = encoder.frames.positions, encoder.frames.count
    if length not in (None, positions):
        rule = f"must be {positions}: the positions that convolutions leave of {count} frames (max_source_positions)"
        raise document.error(rule, (key,), value=length)
    return positions


def _run_decoder(document: Document, entry: Transformer, model: Architecture, source: int) -> TokenStep:
    """The decoder's tokens: its first ones in prefill, one that attends to ``context`` of its own in decode."""
    for key in ("decoder_sequence", "context", "cache_length"):
        length = getattr(entry, key)
        if length is not None and model.max_length is not None and length > model.max_length:
            rule = f"the decoder has learned positions for {model.max_length} tokens only"
            raise document.error(rule, (key,), value=length)
    if entry.phase is Phase.DECODE:
        default = min(DEFAULT_SEQUENCE, model.max_length or model.trained_length or DEFAULT_SEQUENCE)
        length, new = entry.context or default, 1
    else:
        length = new = entry.decoder_sequence or 1
    room = entry.cache_length
    if room is not None and room < length:
        raise document.error(f"the cache must have room for {length} positions", ("cache_length",), value=room)
    cache = _cache_format(document, entry, model)
    return TokenStep(
        phase=entry.phase, batch=entry.batch, q_len=new, kv_len=length, room=room, cache=cache, source=source
    )


def _refuse_chunks(document: Document, entry: Transformer, model: Architecture) -> None:
    """Refuse earlier tokens in prefill, and several new ones in decode, of models that have no step of that kind."""
    decode = entry.phase is Phase.DECODE
    key, value = ("sequence", entry.sequence) if decode else ("context", entry.context)
    if model.encoder is not None:
        longer = "context is the decoder's length" if decode else "decoder_sequence is the decoder's length"
        why = f"is an encoder with a decoder; {longer}"
    elif model.recurrent:
        why = "keeps a state of one size, whatever the tokens before, and no keys and values"
    elif not model.causal:
        why = "is an encoder, and all of its tokens attend to one another at once"
    else:
        return
    what = "several new tokens of each sequence" if decode else "tokens that lie in the cache already"
    said = f"not supported: {key} in {entry.phase.value} ({what})"
    raise document.error(f"{said}: {model.model_type} {why}", (key,), value=value)


def _refuse_cache(document: Document, entry: Transformer, model: Architecture) -> None:
    """Refuse what a state, which has one size whatever came before, has no answer for."""
    if entry.phase is Phase.TRAINING:
        raise NotSupported(f"training of {model.model_type}: no gradients of a scan")
    for key, value in ("context", entry.context), ("cache_length", entry.cache_length):
        if value is not None:
            rule = f"{model.model_type} keeps a state of one size, whatever the tokens before, and no keys and values"
            raise document.error(rule, (key,), value=value)
    if entry.cache_precision is not None:
        rule = f"{model.model_type} keeps no keys and values; its state has the operands' format"
        raise document.error(rule, ("cache_precision",), value=entry.cache_precision.value)


def _cache_format(document: Document, entry: Transformer, model: Architecture) -> DataType | None:
    """The format that keys and values are kept in, where one is stated."""
    stated = entry.cache_precision if entry.phase is not Phase.TRAINING else None
    if stated is None:
        return None
    if not model.causal:
        raise document.error(
            f"{model.model_type} is an encoder and keeps no cache", ("cache_precision",), value=stated.value
        )
    if any(isinstance(layer.attention, LatentAttention) for layer in model.layers):
        raise NotSupported("cache_precision of a latent cache")
    return stated.dtype


def _check_cache(document: Document, entry: Transformer, dataflow: Dataflow) -> None:
    """The cache's format has fewer bits than attention's operands, or is theirs."""
    for name in dataflow:
        operator = dataflow[name]
        if not isinstance(operator, Attention | Vector) or operator.cached is None:
            continue
        kept, own = operator.cached.dtype, operator.precision
        if kept is not own and kept.bits >= own.bits:
            rule = f"must have fewer bits than the {own.value} operands of {name}, or be that"
            raise document.error(rule, ("cache_precision",), value=kept.value)


def _notes(model: Architecture, run: TokenStep) -> tuple[str, ...]:
    """Positions that no table holds go on beyond those that a model was made for; what it says there is open."""
    longest = max(run.kv_len, run.source)
    if model.trained_length is None or longest <= model.trained_length:
        return ()
    return (f"{longest:,} tokens are more than the {model.trained_length:,} positions that the model was made for",)


def _formats(
    document: Document, entry: Transformer, model: Architecture, meant: bool
) -> tuple[DataType, Packing | None, dict[str, Stated]]:
    """Format of operands, how weights are packed, and what is stated of operators by name."""
    stated = [p for p in (entry.precision, *entry.operator_precision.values()) if p is not None]
    group = group_of(document, stated, entry.weight_group, meant)
    if entry.phase is Phase.TRAINING and any(p.weights for p in stated):
        raise NotSupported("training with packed weights (precision)")
    precision, packing = formats_of(entry.precision, model.dtype, group)
    patterns = {pattern: Stated(p.dtype, p.packing(group)) for pattern, p in entry.operator_precision.items()}
    return precision, packing, patterns


def _check_patterns(document: Document, entry: Transformer, operators: Sequence[Operator]) -> None:
    for pattern, stated in entry.operator_precision.items():
        found = [operator for operator in operators if fnmatchcase(operator.name, pattern)]
        if not found:
            blocks = ", ".join(dict.fromkeys(operator.name for operator in operators))
            rule = f"no operator matches '{pattern}'; there are {blocks}"
            raise document.error(rule, ("operator_precision", pattern))
        if stated.weights and not any(isinstance(operator, Gemm) and operator.weight for operator in found):
            rule = f"no operator that '{pattern}' matches has weights to pack"
            raise document.error(rule, ("operator_precision", pattern), value=stated.value)
