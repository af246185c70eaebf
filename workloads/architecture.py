"""What a transformer is, in the terms all families share: its layers, embeddings and head."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from msgspec import Struct

from siliconloom.arch.datatype import DataType
from siliconloom.arch.vector import VectorFunction


class Norm(Struct, frozen=True, kw_only=True):
    """Layer norm (gamma and beta) or RMS norm (gamma); ``affine=False`` leaves the parameters out."""

    function: VectorFunction
    affine: bool = True

    def weights(self, width: int) -> int:
        """Parameter elements of a norm over ``width`` columns."""
        vectors = 2 if self.function is VectorFunction.LAYER_NORM else 1
        return vectors * width * self.affine


EPSILON = 1e-5
"""Added to the variance, or the mean square, of a row, where nothing else is said."""
LAYER_NORM = Norm(function=VectorFunction.LAYER_NORM)
RMS_NORM = Norm(function=VectorFunction.RMS_NORM)


class GroupedAttention(Struct, frozen=True, kw_only=True):
    """Multi-head, grouped-query (``kv_heads`` < ``heads``) or multi-query (``kv_heads`` = 1) attention.

    Parameters
    ----------
    rotary_dim
        Columns of each head that RoPE turns; 0 for none.
    qkv_bias, output_bias
        Biases of the projections.
    qk_norm
        Norm over each head's queries and keys, sharing its parameters among heads.
    key_bias
        Where there are biases of queries and values, keys have one, too.
    window
        Keys a query sees, its own included; ``None`` for all. Without a causal mask those that are nearer than it on
        either side.
    position_buckets
        Rows of a table of relative positions, with a column for each head, from which a bias is added to every score;
        0 for none. All layers of a stack use the same table (T5, Raffel et al., arXiv:1910.10683, section 2.1).
    alibi
        A bias is added to every score that grows with the distance, by a slope of its head that is no parameter
        (Press et al., arXiv:2108.12409, section 3).
    chunk
        Positions of a chunk: a query sees the keys of its own one, up to its own position; ``None`` for all (Llama 4).
    sinks
        Each head has a score beside those of keys, a parameter, that takes its part of the softmax and brings no value
        (gpt-oss; Xiao et al., arXiv:2309.17453).
    gate
        The product that makes queries makes a gate for each of their columns, too, whose sigmoid multiplies what
        attention makes (Qwen3-Next).
    query_scale
        Queries are multiplied by a number of their position (Llama 4, in layers without RoPE).
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Norm | None = None
    key_bias: bool = True
    window: int | None = None
    causal: bool = True
    position_buckets: int = 0
    alibi: bool = False
    chunk: int | None = None
    sinks: bool = False
    gate: bool = False
    query_scale: bool = False


class LatentAttention(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Parameters
    ----------
    q_rank, kv_rank
        Widths of the compressed queries (``None``: not compressed) and of the compressed keys and values.
    content_dim, rotary_dim, v_head_dim
        Per head: columns of a key without position, columns that RoPE turns, columns of a value.
    bias
        Of the two compressing projections and of the output.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    content_dim: int
    rotary_dim: int
    v_head_dim: int
    bias: bool = False

    window: None = None


class StateSpace(Struct, frozen=True, kw_only=True):
    """The mixer of a Mamba layer (Gu and Dao, arXiv:2312.00752, figure 3 and algorithm 2).

    Parameters
    ----------
    inner
        Columns that are convolved and scanned: ``expand`` times the width of the model.
    state
        States of each of them.
    taps
        Of the depthwise causal convolution.
    rank
        Columns from which the steps of all inner columns are made.
    bias, convolution_bias
        Of the projections in and out; of the convolution.
    inner_norms
        RMS norms of what steps, and of what B and C are (Jamba, Lieber et al., arXiv:2403.19887, section 3).
    """

    inner: int
    state: int
    taps: int
    rank: int
    bias: bool = False
    convolution_bias: bool = True
    inner_norms: bool = False

    window: None = None


class ChunkedStateSpace(Struct, frozen=True, kw_only=True):
    """The mixer of a Mamba-2 layer (Dao and Gu, arXiv:2405.21060, figure 6 and listing 1).

    Parameters
    ----------
    heads, head_dim
        Heads, each with one decay, and columns of a head.
    groups
        Of heads that share B and C.
    state, taps, bias, convolution_bias
        As in `StateSpace`.
    chunk
        Tokens of a chunk, within which prefill multiplies matrices.
    gated_norm
        A norm follows the gate.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    taps: int
    chunk: int
    bias: bool = False
    convolution_bias: bool = True
    gated_norm: bool = True

    window: None = None

    @property
    def inner(self) -> int:
        """Columns of all heads."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Columns that are convolved: those of heads, and B and C of groups."""
        return self.inner + 2 * self.groups * self.state


class DeltaNet(Struct, frozen=True, kw_only=True):
    """The mixer of a gated delta net (Yang et al., arXiv:2412.06464, sections 3.1 and 3.3).

    Each head of values has a state of ``key_dim`` x ``value_dim``, which decays, forgets what it has under a key and
    takes up the value of it.

    Parameters
    ----------
    key_heads, value_heads
        Heads of queries and keys, and of values, that share those evenly.
    key_dim, value_dim
        Columns of a query or key, and of a value.
    taps
        Of the depthwise causal convolution of queries, keys and values.
    chunk
        Tokens of a chunk, within which prefill multiplies matrices.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    chunk: int = 64

    window: ClassVar[None] = None
    bias: ClassVar[bool] = False
    convolution_bias: ClassVar[bool] = False

    @property
    def inner(self) -> int:
        """Columns of the values of all heads."""
        return self.value_heads * self.value_dim

    @property
    def keys(self) -> int:
        """Columns of the keys of all heads, as many as queries have."""
        return self.key_heads * self.key_dim

    @property
    def state(self) -> int:
        """States of each column of values."""
        return self.key_dim

    @property
    def convolved(self) -> int:
        """Columns that are convolved: queries, keys and values."""
        return 2 * self.keys + self.inner


MIXERS = StateSpace | ChunkedStateSpace | DeltaNet
"""What keeps a state of one size in place of keys and values."""


class FeedForward(Struct, frozen=True, kw_only=True):
    """Two-layer perceptron, or the gated one of three matrices; ``activation`` is of the plain kind."""

    intermediate: int
    activation: VectorFunction
    gated: bool = True
    bias: bool = False


class MixtureOfExperts(Struct, frozen=True, kw_only=True):
    """``top_k`` of ``experts`` gated perceptrons for each token, and a shared one that all tokens use.

    Parameters
    ----------
    intermediate
        Width of one expert.
    shared_intermediate
        Width of the shared experts together; 0 for none.
    shared_gate
        The shared experts' part is weighed by the sigmoid of one product of the token (Qwen2-MoE, Qwen3-Next).
    bias
        Of the experts' products.
    correction_bias
        The router stores one more value per expert: one that balances the load (DeepSeek-V3), a bias (gpt-oss).
    dense
        Every expert computes every token, and those that are not chosen have the weight zero.
    popularity
        Weights of the experts in proportion to which tokens use them; none where all are as popular.
    by_chance
        Each token draws its experts, all as likely; else all have as many tokens, or as many as their weights say.
    """

    experts: int
    top_k: int
    intermediate: int
    activation: VectorFunction
    shared_intermediate: int = 0
    shared_gate: bool = False
    bias: bool = False
    correction_bias: bool = False
    dense: bool = False
    popularity: tuple[float, ...] = ()
    by_chance: bool = False


class NormPlacement(Enum):
    """Where the norms of a layer stand."""

    PRE = "before attention and before the perceptron"
    POST = "after each residual sum"
    SANDWICH = "before and after attention, before and after the perceptron"
    PARALLEL = "one norm before attention and perceptron, which run side by side"
    PARALLEL_PAIR = "a norm before attention and another one before the perceptron, which run side by side"


class Layer(Struct, frozen=True, kw_only=True):
    """One layer: of a transformer, which with ``cross`` attends to the encoder's result after its own tokens, or with a
    mixer that keeps a state in place of attention; in a state-space model that mixer is alone.
    """

    attention: GroupedAttention | LatentAttention | StateSpace | ChunkedStateSpace | DeltaNet
    feed_forward: FeedForward | MixtureOfExperts | None
    norm: Norm
    placement: NormPlacement = NormPlacement.PRE
    cross: GroupedAttention | None = None


class Patches(Struct, frozen=True, kw_only=True):
    """Squares that an image is cut into, which do not overlap (Dosovitskiy et al., arXiv:2010.11929, section 3.1).

    Parameters
    ----------
    image, patch
        Pixels along a side of the image, and of a patch, which divides it.
    channels
        Values of a pixel.
    """

    image: int
    patch: int
    channels: int

    @property
    def count(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2

    @property
    def values(self) -> int:
        """Values of a patch."""
        return self.channels * self.patch**2


class Frames(Struct, frozen=True, kw_only=True):
    """Frames of a spectrogram, and two convolutions over them of which the second one halves their number.

    Both have a kernel of ``kernel`` frames and are padded to keep their ends; a GELU follows each (Whisper, Radford et
    al., arXiv:2212.04356, section 2.2).

    Parameters
    ----------
    bands
        Values of a frame: mel bands.
    positions
        Positions that the second convolution leaves.
    """

    bands: int
    positions: int

    kernel: ClassVar[int] = 3
    stride: ClassVar[int] = 2

    @property
    def count(self) -> int:
        """Frames that the first convolution takes."""
        return self.positions * self.stride


class Encoder(Struct, frozen=True, kw_only=True):
    """What comes before a decoder: layers of its own over another sequence, which the decoder's layers attend to.

    Parameters
    ----------
    layers, norm
        Its layers, and the norm behind the last one.
    frames
        Those of a spectrogram, in place of tokens; a table of as many positions as they make is added to them.
    """

    layers: tuple[Layer, ...]
    norm: Norm
    frames: Frames | None = None


class Architecture(Struct, frozen=True, kw_only=True):
    """A whole model.

    Parameters
    ----------
    model_type
        Family, as in ``config.json``.
    vocabulary, hidden
        Rows of the token table (0: the model reads images), width of the residual stream.
    embedding_width
        Columns of the token table; where it differs from ``hidden``, projections stand on both sides.
    positions, max_length
        Rows of the learned position table (0: none), and the longest sequence it serves (``None``: any).
    first_position, padding
        Row of that table that a sequence begins with, and the token that fills sequences up, where it has no position.
    trained_length
        Positions that a model with rotary ones was made for, which longer sequences only leave behind.
    token_types
        Rows of the segment table (0: none).
    patches
        Those of an image; with a class token before them they are a sequence, in place of tokens.
    encoder
        The encoder whose result the layers attend to; ``layers``, positions and embeddings are the decoder's then, and
        both read one table of tokens where the encoder reads tokens.
    embedding_norm
        Norm right after the embeddings (BERT).
    embedding_scale
        The embeddings are multiplied by a constant (Gemma).
    final_norm
        Norm before the head.
    tied
        The head uses the token table.
    head_scale
        What the head takes is multiplied by a constant (T5, where its head is the token table).
    pooler
        The model ends in BERT's pooler in place of a language-model head.
    classes
        Columns of the classifier of the first position that the model ends in, in place of a language-model head (0:
        none).
    headless
        The model ends in its final norm: what comes out is a row for each position (T5's encoder by itself).
    head_bias
        The head has a bias.
    softcap
        The logits are squashed by a tanh (Gemma 2).
    dtype
        Format that the model is stored in, where its configuration says.
    epsilon
        What norms add to the mean square of a row.
    """

    model_type: str
    vocabulary: int
    hidden: int
    layers: tuple[Layer, ...]
    embedding_width: int
    positions: int = 0
    max_length: int | None = None
    first_position: int = 0
    padding: int | None = None
    trained_length: int | None = None
    token_types: int = 0
    patches: Patches | None = None
    encoder: Encoder | None = None
    embedding_norm: Norm | None = None
    embedding_scale: bool = False
    final_norm: Norm | None = None
    tied: bool = False
    head_scale: bool = False
    pooler: bool = False
    classes: int = 0
    headless: bool = False
    head_bias: bool = False
    softcap: bool = False
    epsilon: float = EPSILON
    dtype: DataType | None = None

    @property
    def causal(self) -> bool:
        """Whether each token sees only those before it."""
        return all(getattr(layer.attention, "causal", True) for layer in self.layers)

    @property
    def recurrent(self) -> bool:
        """Whether a state of one size takes the place of keys and values, in some layers or in all."""
        return any(isinstance(layer.attention, MIXERS) for layer in self.layers)

    @property
    def attends(self) -> bool:
        """Whether some layer has keys and values."""
        return any(not isinstance(layer.attention, MIXERS) for layer in self.layers)

    @property
    def length(self) -> int | None:
        """The only length of a sequence there is, where an image's patches say it; ``None`` where it is open."""
        return None if self.patches is None else self.patches.count + 1


GATED = {
    VectorFunction.GELU: VectorFunction.GATED_GELU,
    VectorFunction.SILU: VectorFunction.GATED_SILU,
    VectorFunction.CLAMPED_SWIGLU: VectorFunction.CLAMPED_SWIGLU,
}
