"""Finds, reads and checks a workload: a list, a transformer, an ONNX file, or a bare Hugging Face ``config.json``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field, TypeAdapter

from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.document import Document, find_document, find_file
from siliconloom.arch.errors import LoomError, NotSupported, Position
from siliconloom.workloads.architecture import Architecture, MixtureOfExperts
from siliconloom.workloads.attention import TokenStep
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.description import Transformer
from siliconloom.workloads.encoder_decoder import resting
from siliconloom.workloads.graph import Graph, Phase
from siliconloom.workloads.huggingface import read_architecture
from siliconloom.workloads.names import LIBRARY
from siliconloom.workloads.operators import Attention, Gemm, Operator, Vector
from siliconloom.workloads.popularity import zipf
from siliconloom.workloads.precision import (
    Stated,
    Unpacked,
    check_compression,
    check_groups,
    formats_of,
    group_of,
    sparsity_of,
)
from siliconloom.workloads.quantization import KEY, StoredWeights, stored_weights
from siliconloom.workloads.requests import refuse_beside, step_in_words
from siliconloom.workloads.roles import Role
from siliconloom.workloads.steps import requested_step, token_step
from siliconloom.workloads.transformer import forward_graph


def load_workload(name: str | Document | Graph, overrides: list[tuple[str, str]] | None = None) -> Graph:
    """Read a workload from a file or the library, or as described; one that was read already is taken as it is.

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
    if isinstance(name, Graph):
        if overrides:
            path, value = overrides[0]
            raise LoomError(f"--set workload.{path}={value}: {name.name} was read already; read it with its overrides")
        return name
    document, title = workload_document(name)
    return read_workload(document, title, overrides)


def workload_document(name: str | Document) -> tuple[Document, str]:
    """Description of a workload, and its name where it says none; see `load_workload`."""
    if isinstance(name, Document):
        document = find_document(name, LIBRARY, "workload")
        if "kind" not in document.data and "model_type" in document.data:
            document = _wrapped(document, Path(document.source))
        return document, _title(document.source)
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
        "expert_popularity": "expert_popularity in training; plan.expert_load and plan.expert_routing say it of plans",
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
    if entry.requests is not None:
        refuse_beside(document, changed)
        entry = entry.model_copy(update={"phase": Phase.PREFILL, "training_batch": None})
    _refuse_other_phases(document, entry, set() if entry.requests is not None else described | changed)
    if entry.phase is Phase.TRAINING and entry.training_batch is not None:
        if {"batch", "training_batch"} <= changed:
            raise document.error("give batch or training_batch", ("training_batch",), value=entry.training_batch)
        if "batch" not in changed:
            entry = entry.model_copy(update={"batch": entry.training_batch})
    whole = read_architecture(document, ("model",))
    model = _asked_of(document, entry, whole)
    if entry.requests is None:
        run = token_step(document, entry, model, described | changed, caches=whole.attends)
    else:
        run = requested_step(document, entry, model)
        entry = entry.model_copy(update={"phase": run.phase})
    packed = None if entry.precision is not None else stored_weights(document, ("model",))
    precision, packing, patterns = _formats(document, entry, model, packed, "weight_group" in changed)
    own = entry.precision if packed is None else packed.precision
    stated = [p for p in (own, *entry.operator_precision.values()) if p is not None]
    check_compression(document, stated, entry.weight_compression, entry.phase)
    alone = _experts_alone(document, model) if packed is not None and packed.experts_alone else None
    unpacked = Unpacked(entry.weight_compression, sparsity_of(document, entry, entry.phase), alone)
    sample = entry.sample is not None and entry.phase is not Phase.TRAINING
    if sample and (model.pooler or model.classes or model.headless):
        end = "pooler" if model.pooler else "classifier" if model.classes else "norm at its end"
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
        requests=run.groups,
        notes=(*_notes(model, run), *_stored_notes(document, entry, packed)),
    )
    _check_patterns(document, entry, (*graph.operators(), *rest))
    _check_cache(document, entry, dataflow)
    check_groups(document, [*graph.operators(), *rest])
    if entry.phase is Phase.TRAINING:
        from siliconloom.workloads.training import training_graph

        return replace(graph, dataflow=training_graph(dataflow, graph.blocks(), model.hidden))
    return graph


def load_mixtures(name: str | Document, overrides: list[tuple[str, str]] | None = None) -> list[MixtureOfExperts]:
    """The mixtures of experts of a model's layers, first to last; none of what is no transformer's description."""
    document, _ = workload_document(name)
    document.override(overrides or [], "workload.")
    if document.data.get("kind") != "transformer":
        return []
    model = _asked_of(document, document.validate(Transformer), read_architecture(document, ("model",)))
    return [each.feed_forward for each in model.layers if isinstance(each.feed_forward, MixtureOfExperts)]


def _asked_of(document: Document, entry: Transformer, whole: Architecture) -> Architecture:
    """The layers of a model that are asked for, with experts that are used as it is said."""
    model = _kept_layers(document, entry, whole)
    if entry.experts is not None:
        model = _with_all_experts(document, model)
    if entry.expert_popularity is not None:
        model = _with_popular_experts(document, entry, model)
    return model


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
    made = _with_experts(model, dense=True)
    if made.layers == model.layers:
        raise document.error("the model has no experts", ("experts",), value="all")
    return made


def _with_experts(model: Architecture, **changes: Any) -> Architecture:
    """The same model with other mixtures of experts."""
    layers = tuple(
        replace(layer, feed_forward=replace(layer.feed_forward, **changes))
        if isinstance(layer.feed_forward, MixtureOfExperts)
        else layer
        for layer in model.layers
    )
    return replace(model, layers=layers)


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


def _with_popular_experts(document: Document, entry: Transformer, model: Architecture) -> Architecture:
    """The same model, some of whose experts get more tokens than others; where all are as popular, the same."""
    key, stated = ("expert_popularity",), entry.expert_popularity
    mixtures = [each.feed_forward for each in model.layers if isinstance(each.feed_forward, MixtureOfExperts)]
    if not mixtures:
        raise document.error("the model has no experts", key)
    if entry.experts is not None:
        raise document.error("changes nothing: experts: all lets every expert compute every token", key)
    experts, used = mixtures[0].experts, mixtures[0].top_k
    assert stated is not None
    if isinstance(stated, str):
        return _with_experts(model, by_chance=True)
    weights = zipf(experts, stated) if isinstance(stated, float) else stated
    if len(weights) != experts:
        raise document.error(f"must have a number for each of the {experts} experts, and has {len(weights)}", key)
    if sum(weight > 0 for weight in weights) < used:
        rule = f"at least {used} experts must have tokens, as each token uses {used}"
        raise document.error(rule, key)
    return model if len(set(weights)) == 1 else _with_experts(model, popularity=weights)


def _notes(model: Architecture, run: TokenStep) -> tuple[str, ...]:
    """Positions that no table holds go on beyond those that a model was made for; what it says there is open."""
    longest = max(run.kv_len, run.source)
    said = (step_in_words(run.groups),) if run.groups else ()
    if model.trained_length is None or longest <= model.trained_length:
        return said
    beyond = f"{longest:,} tokens are more than the {model.trained_length:,} positions that the model was made for"
    return (*said, beyond)


def _experts_alone(document: Document, model: Architecture) -> frozenset[Role]:
    """Roles of experts' products, of a model that has them."""
    if not any(isinstance(layer.feed_forward, MixtureOfExperts) for layer in model.layers):
        rule = "not supported: weights of attention that stay as they are, of a model without experts"
        raise document.error(rule, ("model", KEY))
    return frozenset({Role.EXPERT_COLUMN, Role.EXPERT_ROW})


def _stored_notes(document: Document, entry: Transformer, stored: StoredWeights | None) -> tuple[str, ...]:
    """What a file says of its weights holds where no precision is stated."""
    if entry.precision is not None and document.data["model"].get(KEY) is not None:
        return (f"precision {entry.precision.value} is stated; what the model's file says of its weights is not read",)
    if stored is None:
        return ()
    groups = f" in groups of {stored.group}" if stored.group is not None else ""
    alone = ", experts alone" if stored.experts_alone else ""
    return (f"weights as the model's file has them: {stored.precision.value}{groups}{alone} ({KEY})",)


def _formats(
    document: Document, entry: Transformer, model: Architecture, stored: StoredWeights | None, meant: bool
) -> tuple[DataType, Packing | None, dict[str, Stated]]:
    """Format of operands, how weights are packed, and what is stated of operators by name."""
    own, rows = entry.precision, entry.weight_group
    if stored is not None:
        own, rows = stored.precision, stored.group if rows is None else rows
    stated = [p for p in (own, *entry.operator_precision.values()) if p is not None]
    group = group_of(document, stated, rows, meant)
    if entry.phase is Phase.TRAINING and any(p.weights for p in stated):
        raise NotSupported("training with packed weights (precision)")
    precision, packing = formats_of(own, model.dtype, group)
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
