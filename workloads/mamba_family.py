"""State-space models: Mamba (selective scan) and Mamba-2 (SSD).

Defaults of missing keys are those of each family's configuration class in Hugging Face transformers; the sizes of the
model (width, layers) must be there.
"""

from __future__ import annotations

from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import RMS_NORM, Architecture, ChunkedStateSpace, Layer, StateSpace
from siliconloom.workloads.configuration import MAX_LAYERS, Configuration

MAX_STATE = 2**12
MAX_TAPS = 2**8
MAX_CHUNK = 2**14


def mamba(config: Configuration) -> Architecture:
    """Mamba: a convolution, steps and B and C that depend on the token, a scan (arXiv:2312.00752, algorithm 2)."""
    hidden = config.required("hidden_size")
    inner = config.integer("expand", default=2) * hidden
    stated = config.optional("intermediate_size")
    if stated not in (None, inner):
        raise config.error(f"must be {inner}, expand times hidden_size", "intermediate_size", value=stated)
    automatic = config.has("time_step_rank") and config.data["time_step_rank"] == "auto"
    rank = -(-hidden // 16) if automatic else config.integer("time_step_rank", default=-(-hidden // 16))
    mixer = StateSpace(
        inner=inner,
        state=config.integer("state_size", default=16, high=MAX_STATE),
        taps=config.integer("conv_kernel", default=4, low=2, high=MAX_TAPS),
        rank=rank,
        bias=config.flag("use_bias", False),
        convolution_bias=config.flag("use_conv_bias", True),
    )
    return _architecture(config, "mamba", hidden, mixer, vocabulary=50280, tied=True)


def mamba2(config: Configuration) -> Architecture:
    """Mamba-2: heads with one decay each, which a prompt goes through in chunks (arXiv:2405.21060, section 6)."""
    hidden = config.required("hidden_size")
    inner = config.integer("expand", default=2) * hidden
    heads = config.integer("num_heads", default=128)
    width = config.integer("head_dim", default=64)
    key = "num_heads" if config.has("num_heads") else "hidden_size"
    if heads * width != inner:
        raise config.error(f"heads of {width} columns must be {inner}, expand times hidden_size", key, value=heads)
    groups = config.integer("n_groups", default=8)
    if heads % groups:
        key = "n_groups" if config.has("n_groups") else key
        raise config.error(f"{heads} heads cannot share {groups} groups evenly", key, value=groups)
    mixer = ChunkedStateSpace(
        heads=heads,
        head_dim=width,
        groups=groups,
        state=config.integer("state_size", default=128, high=MAX_STATE),
        taps=config.integer("conv_kernel", default=4, low=2, high=MAX_TAPS),
        chunk=config.integer("chunk_size", default=256, high=MAX_CHUNK),
        bias=config.flag("use_bias", False),
        convolution_bias=config.flag("use_conv_bias", True),
        gated_norm=config.flag("rms_norm", True),
    )
    return _architecture(config, "mamba2", hidden, mixer, vocabulary=32768, tied=False)


def _architecture(
    config: Configuration, name: str, hidden: int, mixer: StateSpace | ChunkedStateSpace, *, vocabulary: int, tied: bool
) -> Architecture:
    if config.activation("hidden_act", default="silu") is not VectorFunction.SILU:
        raise config.error("must be silu", "hidden_act", value=config.data["hidden_act"])
    return Architecture(
        model_type=name,
        vocabulary=config.integer("vocab_size", default=vocabulary),
        hidden=hidden,
        embedding_width=hidden,
        layers=(Layer(attention=mixer, feed_forward=None, norm=RMS_NORM),)
        * config.required("num_hidden_layers", high=MAX_LAYERS),
        final_norm=RMS_NORM,
        tied=config.flag("tie_word_embeddings", tied),
        dtype=config.dtype(),
    )
