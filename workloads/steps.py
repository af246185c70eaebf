"""How a model is run: from what a description says of phase, sequences and lengths to one step, checked."""

from __future__ import annotations

from siliconloom.arch.datatype import DataType
from siliconloom.arch.document import Document
from siliconloom.arch.errors import NotSupported
from siliconloom.workloads.architecture import Architecture, Encoder, LatentAttention
from siliconloom.workloads.attention import TokenStep
from siliconloom.workloads.description import Transformer
from siliconloom.workloads.graph import Phase
from siliconloom.workloads.requests import check_requests, groups_of, together

DEFAULT_SEQUENCE = 2048


def token_step(
    document: Document, entry: Transformer, model: Architecture, meant: set[str], *, caches: bool
) -> TokenStep:
    """How the model is run.

    Parameters
    ----------
    meant
        Keys that are said of this phase.
    caches
        The model has layers with keys and values, whether or not they are among those that are kept of it.
    """
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
    if model.headless and entry.phase is Phase.TRAINING:
        raise NotSupported(f"training of {model.model_type}'s encoder by itself: no loss is known of it")
    if model.recurrent and entry.phase is Phase.TRAINING:
        raise NotSupported(f"training of {model.model_type}: no gradients of a scan")
    if not caches:
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


def requested_step(document: Document, entry: Transformer, model: Architecture) -> TokenStep:
    """One step of requests of several lengths; of equal ones it is that of ordinary prefill, or decode."""
    assert entry.requests is not None
    step = together(entry.requests)
    check_requests(document, step, model)
    room = entry.cache_length
    if room is not None and room < step.longest:
        raise document.error(f"the cache must have room for {step.longest} positions", ("cache_length",), value=room)
    if room is not None and not model.causal:
        raise document.error(f"{model.model_type} is an encoder and keeps no cache", ("cache_length",), value=room)
    if room is not None and any(isinstance(layer.attention, LatentAttention) for layer in model.layers):
        raise NotSupported("cache_length of a latent cache")
    first, groups = step.groups[0], groups_of(step)
    return TokenStep(
        phase=step.phase,
        batch=step.count,
        q_len=max(group.new for group in step.groups) if groups else first.new,
        kv_len=step.longest,
        room=room,
        cache=_cache_format(document, entry.model_copy(update={"phase": step.phase}), model),
        groups=groups,
    )


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
        why = "keeps a state of one size, whatever the tokens before" + ", and no keys and values" * (not model.attends)
    elif not model.causal:
        why = "is an encoder, and all of its tokens attend to one another at once"
    else:
        return
    what = "several new tokens of each sequence" if decode else "tokens that lie in the cache already"
    said = f"not supported: {key} in {entry.phase.value} ({what})"
    raise document.error(f"{said}: {model.model_type} {why}", (key,), value=value)


def _refuse_cache(document: Document, entry: Transformer, model: Architecture) -> None:
    """Refuse what a state, which has one size whatever came before, has no answer for."""
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


__all__ = ["requested_step", "token_step"]
