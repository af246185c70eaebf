"""What a description of a transformer says: the model, how it is run, and in which formats."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from siliconloom.arch.document import Description
from siliconloom.workloads.fields import Count, Title
from siliconloom.workloads.graph import Phase
from siliconloom.workloads.precision import Block, CacheName, Compression, Density, Group, PrecisionName, SparsityName
from siliconloom.workloads.requests import MOST, Request

Length = Annotated[int, Field(ge=1, le=2**24, strict=True)]

Exponent = Annotated[float, Field(ge=0, le=8)]
Share = Annotated[float, Field(ge=0, le=1e12)]


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
    ``requests`` are those of one step of a serving engine, in place of phase, batch and lengths: of each the ``new``
    tokens, those that lie in the cache (``context``), and the ``count`` of requests that are alike.
    ``cache_length`` are the positions that the cache has room for, where those are more. ``training_batch`` are the
    sequences of a training step, where ``--set`` gives no ``batch``. ``layers`` keeps only the first so many.
    ``experts: all`` lets every expert compute every token, with the weight zero where it is not chosen.
    ``expert_popularity`` says that some experts get more tokens than others, in every layer: an exponent, so that the
    r-th expert's share is r to the power of its negative (Zipf), or a number for each expert that its share is in
    proportion to, such as tokens that were counted. With ``chance`` all are as popular, and each token draws its own.
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
    requests: Annotated[tuple[Request, ...], Field(min_length=1, max_length=MOST)] | None = None
    cache_length: Length | None = None
    layers: Length | None = None
    experts: Literal["all"] | None = None
    expert_popularity: (
        Exponent | Annotated[tuple[Share, ...], Field(min_length=1, max_length=2**16)] | Literal["chance"] | None
    ) = None
    sample: Literal["greedy"] | None = None
    precision: PrecisionName | None = None
    operator_precision: dict[str, PrecisionName] = Field(default={})
    weight_group: Group | None = None
    weight_compression: Compression | None = None
    weight_sparsity: SparsityName | None = None
    weight_density: Density | None = None
    weight_block: Block | None = None
    cache_precision: CacheName | None = None


__all__ = ["Transformer"]
