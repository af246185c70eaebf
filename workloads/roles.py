"""What an operator is for in its model, as data: names are labels for people, and nothing reads them.

Whoever builds a workload says the role of every operator; whoever splits, times or counts a workload asks for it. What
belongs together is said too: the layer that an operator is part of, the pass of a training step that it is done in, and
the operator of the forward pass whose gradient it makes.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Role(StrEnum):
    """What an operator does in its model, as far as it matters to how chips share it.

    An operator of the backward pass has the role of the one whose gradient it makes.
    """

    NONE = "none"
    """Nothing is known of its place in a model: products and convolutions of a list, the optimizer."""
    TABLE = "table"
    """Rows of the vocabulary's table."""
    EMBEDDING = "embedding"
    """What else makes the first layer's input: positions, token types, a class token, their sum, its scale and norm."""

    QKV = "qkv"
    """The product that makes queries, keys and values of all heads."""
    COLUMN_PARALLEL = "column_parallel"
    """A product whose result is cut over chips: into heads, or into columns of the perceptron."""
    ROW_PARALLEL = "row_parallel"
    """A product whose sums are cut over chips: of what attention, or the perceptron, has made in parts."""
    HEADWISE = "headwise"
    """One product for each head."""
    WHOLE = "whole"
    """A product that every chip does itself, or a function of it: it makes what all heads or all columns use."""
    ATTENTION = "attention"
    CROSS_KEYS_VALUES = "cross_keys_values"
    """The product that makes, of the encoder's result, the keys and values that a decoder layer's tokens attend to."""
    CROSS_CACHE = "cross_cache"
    """Puts those keys and values into a cache, once for all of the decoder's tokens."""
    CROSS_ATTENTION = "cross_attention"
    """Attention of the decoder's tokens to the encoder's positions."""
    POSITION_BIAS = "position_bias"
    """Rows of the table of relative positions: a bias for each distance, and each head."""
    SCORE_BIAS = "score_bias"
    """Adds to every score the bias of its distance and head, before the softmax."""
    QUERY_NORM = "query_norm"
    """A norm of every head's queries."""
    KEY_NORM = "key_norm"
    """A norm of every key-value head's keys."""
    LATENT_NORM = "latent_norm"
    """A norm of the latent that queries, or keys and values, are expanded from."""
    ROPE = "rope"
    """Turns queries and keys of all heads."""
    LATENT_ROPE = "latent_rope"
    """Turns queries of all heads, and the one key that they share."""
    CACHE = "cache"
    """Appends keys and values of all heads to the cache."""
    LATENT_CACHE = "latent_cache"
    """Appends to the cache the latent that all heads share."""
    ACTIVATION = "activation"
    """A function of every value that the product before it makes."""

    ROUTER = "router"
    """The product that says which experts a token goes to."""
    ROUTE = "route"
    """Chooses a token's experts."""
    EXPERT_COLUMN = "expert_column"
    """The experts' first product, which widens."""
    EXPERT_ACTIVATION = "expert_activation"
    EXPERT_ROW = "expert_row"
    """The experts' second product, which narrows."""
    SHARED_COLUMN = "shared_column"
    """As ``column_parallel``, of the expert that all tokens go to."""
    SHARED_ROW = "shared_row"
    """As ``row_parallel``, of the expert that all tokens go to."""
    COMBINE = "combine"
    """The weighted sum of what experts have made of a token."""

    STATE = "state"
    """A function or product of a state-space layer: of what goes on from token to token."""

    NORM = "norm"
    """A norm of the residual stream, before or after one half of a layer."""
    RESIDUAL = "residual"
    """A sum of the residual stream and what one half of a layer adds to it."""
    JOINT_NORM = "joint_norm"
    """A norm before both halves of a layer, or before one of them, where they stand side by side."""
    JOINT_RESIDUAL = "joint_residual"
    """The sum after both halves of a layer, where they stand side by side."""

    FINAL_NORM = "final_norm"
    """The norm of what the head takes."""
    HEAD = "head"
    """The product with the vocabulary, or with the classes of a classifier."""
    SAMPLE = "sample"
    """The next token of every sequence: that of the largest logit."""
    LOSS = "loss"

    ENTRY = "entry"
    """The sum of what flows back to a block's input; as wide as the model."""
    MESSAGE = "message"
    """Chips exchange what the operator before it makes, or the one after it needs."""


class Section(StrEnum):
    """What part of a model a block is."""

    LIST = "list"
    """None: an entry of a list."""
    EMBEDDING = "embedding"
    """What makes the input of the first layer; of a decoder behind an encoder, the encoder's last norm, too."""
    LAYER = "layer"
    """One layer, or the layers of a repeating pattern."""
    HEAD = "head"
    POOLER = "pooler"
    """What takes the first token of each sequence alone: BERT's pooler, a classifier."""


class Pass(StrEnum):
    """What part of a training step an operator is; all of prefill and decode is ``forward``."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """The gradients of an element-wise or row-wise function: of its operands, and of its parameters."""
    INPUT_GRADIENT = "input_gradient"
    """The product that makes the gradient of a product's operand."""
    WEIGHT_GRADIENT = "weight_gradient"
    """The product that makes the gradient of a product's parameters; nobody waits for it but the optimizer."""
    VALUES_GRADIENT = "values_gradient"
    """Attention's scores once more, and the gradient of its values."""
    KEYS_GRADIENT = "keys_gradient"
    """The gradients of attention's scores, queries and keys."""
    GRADIENT_SUM = "gradient_sum"
    """The sum of what flows back to a value that several operators use."""
    OPTIMIZER = "optimizer"


class Place(Struct, frozen=True, kw_only=True):
    """Where in its model an operator stands.

    Parameters
    ----------
    role, section
        What it does, and what part of the model its block is.
    layer
        Number of its layer among those of its block.
    step
        Part of a training step that it is.
    forward
        Name of the operator of the forward pass whose gradient it makes; ``None`` in the forward pass.
    forward_block
        Name of the block of the forward pass that its own block belongs to; ``None`` in the forward pass.
    """

    role: Role = Role.NONE
    section: Section = Section.LIST
    layer: int = 0
    step: Pass = Pass.FORWARD
    forward: str | None = None
    forward_block: str | None = None

    @property
    def backward(self) -> bool:
        """Whether it is part of the backward pass."""
        return self.step is not Pass.FORWARD and self.step is not Pass.OPTIMIZER


ASIDE = frozenset({Role.CROSS_KEYS_VALUES, Role.SCORE_BIAS})
"""Of a block that is executed again and again, what reads a result from before it that stays the same meanwhile."""
EXPERTS = frozenset({Role.EXPERT_COLUMN, Role.EXPERT_ACTIVATION, Role.EXPERT_ROW})
"""What experts that tokens choose compute."""
NOWHERE = Place()
"""Of operators that no model is known of."""

__all__ = ["ASIDE", "EXPERTS", "NOWHERE", "Pass", "Place", "Role", "Section"]
