"""Seconds of a serving engine's steps by measured operators: the tables of `profile_tables` in place of a model.

What every token passes through is a straight line between two numbers of tokens, the head between two numbers of
sequences; a step of at most as many tokens as the engine has captured graphs for is padded to the next graph. A step's
attention is one call. Between the sizes that were timed it is straight in the chunk, the tokens before it, the requests
that have a next token, and their mean length; a chunk below the shortest one takes as long as that. Of several chunks
the longest shares the call with the next tokens, and each other one adds what it takes alone, less an empty call.
Beyond the most requests that were timed beside a chunk, further ones add what they add without it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.baselines.profile_tables import AttentionSlice, OperatorProfile, ProfiledModel
from siliconloom.baselines.stacks import Stack
from siliconloom.workloads import Attention, Collective, Gemm, Graph, Operator

Float = NDArray[np.float64]

PRODUCTS = {"qkv": "qkv_proj", "output": "o_proj", "gate_up": "gate_up_proj", "down": "down_proj", "head": "lm_head"}
"""A workload's products (the last part of their names), as a profile calls them."""
LAYERS = {
    **PRODUCTS,
    "tokens": "embedding",
    "attention_norm": "layernorm",
    "feed_forward_norm": "layernorm",
    "q_norm": "qk_norm",
    "rope": "rotary_emb",
    "activation": "act_fn",
    "norm": "final_layernorm",
}
WITHIN = ("k_norm", "attention_add", "feed_forward_add", "kv_append")
"""What another kernel takes along: norms of queries and keys are one, sums are of the next norm, appends of
attention."""
HEAD, SAMPLER = "lm_head", "sampler"
SMALL_GRAPHS, GRAPH_STEP, LARGE_STEP, LARGE, MOST_GRAPH = (1, 2, 4), 8, 16, 256, 512
"""Sizes of vLLM's captured graphs: every eighth up to 256, then every sixteenth, up to 512 or twice the requests."""


def captured_size(tokens: int, most_requests: int) -> int:
    """Tokens that a step of so many runs with, padded to the next captured graph where there is one."""
    if tokens > min(2 * most_requests, MOST_GRAPH):
        return tokens
    for size in SMALL_GRAPHS:
        if tokens <= size:
            return size
    step = GRAPH_STEP if tokens <= LARGE else LARGE_STEP
    return -(-tokens // step) * step


def profiled_layers(profile: OperatorProfile, part: Graph) -> dict[str, int]:
    """How often a step of one GPU's part of a model runs each layer of a profile.

    Raises
    ------
    NotSupported
        For operators that profiles do not have.
    LoomError
        For a model of other sizes, with the first that differs.
    """
    described, found = profile.described, dict[str, int]()
    for operator in part.operators():
        if isinstance(operator, Collective):
            continue
        _check_size(described, operator)
        last = operator.name.rpartition(".")[2]
        if isinstance(operator, Attention) or last in WITHIN:
            continue
        layer = LAYERS.get(last)
        if layer is None or (layer not in profile.dense and layer not in profile.per_sequence):
            raise NotSupported(f"{operator.name} by the profile {described.name}, which has no such operator")
        found[layer] = found.get(layer, 0) + operator.repeat
    return found


def _check_size(described: ProfiledModel, operator: Operator) -> None:
    if operator.precision.value != described.precision and isinstance(operator, Gemm | Attention):
        raise LoomError(
            f"profile {described.name} was timed in {described.precision}, {operator.name} is in "
            f"{operator.precision.value} (workload.precision)"
        )
    if isinstance(operator, Attention):
        ours: tuple[int, ...] = (operator.heads, operator.kv_heads, operator.head_dim)
        theirs: tuple[int, ...] = (described.heads, described.kv_heads, described.head_dim)
        what = "heads, key-value heads and head size"
    elif isinstance(operator, Gemm):
        name = PRODUCTS.get(operator.name.rpartition(".")[2], "")
        if name not in described.products:
            raise NotSupported(f"{operator.name} by the profile {described.name}, which has no such product")
        if operator.stored_as is not None:
            raise NotSupported(f"{operator.name}, whose weights are packed or sparse, by a profile")
        ours, theirs, what = (operator.n, operator.k), described.products[name], "columns and sums"
    else:
        return
    if tuple(ours) != tuple(theirs):
        raise LoomError(
            f"profile {described.name} is of another model or number of GPUs: {operator.name} has {what} "
            f"{' x '.join(map(str, ours))}, the profile's {' x '.join(map(str, theirs))}"
        )


class ProfileCosts:
    """Costs of one replica by measured operators (`sim.service.costs.StepCosts`); of energy they say nothing.

    Parameters
    ----------
    layers
        How often a step runs each layer; see `profiled_layers`.
    stack
        Software of the host.
    most_requests
        Of a step, for which the engine has captured its graphs.
    messages
        Seconds of a step's messages between the replica's GPUs, for so many tokens.
    """

    def __init__(
        self,
        profile: OperatorProfile,
        layers: Mapping[str, int],
        *,
        depth: int,
        stack: Stack,
        most_requests: int,
        messages: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        self.profile, self.stack, self.depth = profile, stack, depth
        self._most, self._messages = most_requests, messages
        self._tensor = profile.described.tensor
        self._decode = profile.attention[0][min(profile.attention[0])]
        chunks = sorted(c for c in profile.attention if c)
        self._chunks = chunks
        self._known = {c: sorted(profile.attention[c]) for c in chunks}
        self._empty = min(float(s.seconds.min()) for each in profile.attention.values() for s in each.values())
        self._curves: dict[int, Float] = {}
        self._token_s, self._head_s = self._sum(profile.dense, layers), self._sum(profile.per_sequence, layers)

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest step that was timed."""
        return min(len(self._token_s) - 1, self._chunks[-1])

    @property
    def most_sequences(self) -> int:
        """Sequences of the largest step that was timed."""
        return min(len(self._head_s) - 1, int(self._decode.counts[-1]))

    @property
    def longest(self) -> int:
        """Tokens of the longest request that was timed."""
        before = min(known[-1] for known in self._known.values())
        return min(int(self._decode.contexts[-1]), before)

    def steps(
        self, chunks: Sequence[tuple[int, int]], ended: int, count: int, contexts: Float, lengths: object = None
    ) -> tuple[Float, Float]:
        """See `siliconloom.sim.service.costs.StepCosts`; no joules, as none were measured."""
        tokens = captured_size(count + sum(new for new, _ in chunks), self._most)
        if tokens >= len(self._token_s):
            raise LoomError(f"a step of {tokens:,} tokens is beyond profile {self.profile.described.name}")
        fixed = float(self._token_s[tokens]) + float(self._head_s[count + ended]) + self._messages(tokens)
        attention: Float
        if chunks:
            attention = np.full(len(contexts), self._mixed(chunks, count, float(contexts[0]) if count else 0.0))
        else:
            attention = np.interp(contexts, self._decode.contexts, self._curve(count))
        kernels = attention * self.depth + fixed
        return self.stack.step_seconds(kernels, 0.0, count + len(chunks), self._tensor), np.zeros(len(contexts))

    def _sum(self, tables: Mapping[str, tuple[NDArray[np.int64], Float]], layers: Mapping[str, int]) -> Float:
        """Seconds of all layers by their size, from none up to the largest that all of them have."""
        taken = [name for name in tables if name in layers or name == SAMPLER]
        sizes = np.arange(min(int(tables[name][0][-1]) for name in taken) + 1)
        total = np.zeros(len(sizes))
        for name in taken:
            total += np.interp(sizes, *tables[name]) * layers.get(name, 1)
        total[0] = 0.0
        return total

    def _curve(self, count: int) -> Float:
        """Seconds of next tokens of so many requests by their length, straight between the numbers that were timed."""
        found = self._curves.get(count)
        if found is None:
            low, high, share = _between(self._decode.counts.tolist(), count)
            found = self._decode.seconds[low] * (1 - share) + self._decode.seconds[high] * share
            self._curves[count] = found
        return found

    def _mixed(self, chunks: Sequence[tuple[int, int]], count: int, context: float) -> float:
        ordered = sorted(chunks, reverse=True)
        rest = sum(self._chunk(new, known, 0, 0.0) - self._empty for new, known in ordered[1:])
        return self._chunk(*ordered[0], count, context) + rest

    def _chunk(self, new: int, known: int, count: int, context: float) -> float:
        """One chunk behind so many tokens, beside next tokens of ``count`` requests."""
        at = _between(self._chunks, new)
        return _blend(at, [self._behind(self._chunks[place], known, count, context) for place in at[:2]])

    def _behind(self, chunk: int, known: int, count: int, context: float) -> float:
        at = _between(self._known[chunk], known)
        slices = [self.profile.attention[chunk][self._known[chunk][place]] for place in at[:2]]
        return _blend(at, [self._beside(each, count, context) for each in slices])

    def _beside(self, timed: AttentionSlice, count: int, context: float) -> float:
        most = int(timed.counts[-1])
        more = 0.0
        if count > most:
            more = float(np.interp(context, self._decode.contexts, self._curve(count) - self._curve(most)))
        low, high, share = _between(timed.counts.tolist(), min(count, most))
        row = timed.seconds[low] * (1 - share) + timed.seconds[high] * share
        return float(np.interp(context, timed.contexts, row)) + more


def _between(sizes: Sequence[int], number: float) -> tuple[int, int, float]:
    """Places of the sizes around a number, and how far it lies from the first to the second; the ends go on flat."""
    if number <= sizes[0]:
        return 0, 0, 0.0
    if number >= sizes[-1]:
        return len(sizes) - 1, len(sizes) - 1, 0.0
    high = bisect_right(sizes, number)
    low = high - 1
    return low, high, (number - sizes[low]) / (sizes[high] - sizes[low])


def _blend(at: tuple[int, int, float], values: Sequence[float]) -> float:
    return values[0] + (values[1] - values[0]) * at[2]


__all__ = ["ProfileCosts", "captured_size", "profiled_layers"]
