"""Finds attention in a file: softmax(Q K^T) V with whatever scales and masks its scores; and rotary positions."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from siliconloom.models.onnx import MOST_ELEMENTS, OnnxNode
from siliconloom.workloads.onnx.net import OnnxNet

HIDDEN = -1e4
"""A number that is added to a score and is no more than this hides its pair."""
REPEATING = ("Expand", "Tile")
PLAIN = ("Reshape", "Transpose", "Unsqueeze", "Squeeze")


class Mask(NamedTuple):
    """Which pairs of queries and keys count: all, those of earlier positions, or some of these.

    ``known`` is whether that is all that the file's mask says; ``keys`` how many of them, from the first one on, some
    query sees, where not all are seen. Causal queries are the last ones of these.
    """

    causal: bool = False
    window: int | None = None
    known: bool = True
    keys: int | None = None


def fuse_attention(net: OnnxNet) -> None:
    """Replace products, scales, masks and softmaxes of attention by one node each."""
    for node in list(net.nodes):
        if node.kind == "Softmax" and last_axis(net, node):
            _fuse(net, node)


def last_axis(net: OnnxNet, node: OnnxNode) -> bool:
    """Whether a node works on rows of the last axis alone."""
    rank = len(net.shape(node.input(0)))
    newest = net.model.opsets[""] >= 13
    return int(node.attributes.get("axis", -1 if newest else 1)) % max(rank, 1) == rank - 1


def _fuse(net: OnnxNet, softmax: OnnxNode) -> None:
    group, masks = [softmax], []
    name = softmax.input(0)
    while True:
        maker = net.makers.get(name)
        if maker is None or len(net.users[name]) > 1 or name in net.outputs:
            return
        group.append(maker)
        scaled, (results, constants) = net.scaled(maker), net.others(maker)
        if scaled is not None:
            name = scaled
        elif maker.kind == "MatMul":
            break
        elif maker.kind == "Add" and len(constants) == 1:
            masks.append(added_mask(net, constants[0]))
            name = results[0]
        elif maker.kind == "Where" and net.constant(maker.input(0)) and len(results) == 1:
            masks.append(_chosen_mask(net, maker))
            name = results[0]
        else:
            return
    found = _joined(masks, net.shape(softmax.input(0)))
    last = _behind(net, softmax, group)
    if found is None or last is None or net.others(maker)[1]:
        return
    sharing = _sharing(net, maker, softmax, last)
    if sharing is None:
        return
    operands = []
    for operand in maker.inputs:
        scaling = net.makers.get(operand)
        scaled = net.scaled(scaling) if scaling is not None else None
        if scaling is not None and scaled is not None and net.sole_user(operand) is maker:
            group.append(scaling)
            operand = scaled
        operands.append(operand)
    if not net.closed(group, last.output):
        return
    scores, values = net.shape(maker.output), net.shape(last.input(1))
    batch, heads, shared = sharing
    repeats = min(_repeats(net, operands[1]), _repeats(net, last.input(1)))
    attributes = {
        "batch": batch,
        "heads": heads,
        "kv_heads": shared // repeats if shared % repeats == 0 else shared,
        "q_len": scores[-2],
        "kv_len": scores[-1],
        "head_dim": net.shape(maker.input(0))[-1],
        "v_head_dim": values[-1],
        "mask": found,
    }
    made = OnnxNode(softmax.name, "FusedAttention", (*operands, last.input(1)), last.outputs, attributes)
    net.replace(group, made)


def _behind(net: OnnxNet, softmax: OnnxNode, group: list[OnnxNode]) -> OnnxNode | None:
    """The product with values behind a softmax; what makes zeros of what is no number stands between."""
    name = softmax.output
    users = net.users.get(name, [])
    guard = next((each for each in users if each.kind == "IsNaN"), None)
    if guard is not None and len(users) == 2:
        chosen = next(each for each in users if each is not guard)
        if chosen.kind != "Where" or chosen.input(0) != guard.output or net.scalar(chosen.input(1)) != 0:
            return None
        group += [guard, chosen]
        name = chosen.output
    user = net.sole_user(name)
    if user is None or user.kind != "MatMul" or user.input(0) != name or net.constant(user.input(1)):
        return None
    group.append(user)
    return user


def _sharing(net: OnnxNet, scores: OnnxNode, softmax: OnnxNode, last: OnnxNode) -> tuple[int, int, int] | None:
    """Sequences, heads, and heads of keys and values, of products that broadcast these as NumPy does.

    Heads of several sequences that share keys and values are heads of one sequence. There are none where the mask or
    the values have more sequences, heads or queries than the scores, or where keys are shared otherwise than values.
    """
    keys, values = net.shape(scores.input(1)), net.shape(last.input(1))
    if min(len(net.shape(scores.input(0))), len(keys), len(values)) < 2:
        return None
    rank = max(4, len(net.shape(last.output)))
    outer, found, *own = (
        ((1,) * (rank - len(shape)) + shape)[:-2]
        for shape in (net.shape(scores.output), net.shape(last.output), keys, values)
    )
    if outer != found or net.tensor(scores.output).elements != net.tensor(softmax.input(0)).elements:
        return None
    broad, others = ([size == 1 < whole for size, whole in zip(shape, outer, strict=True)] for shape in own)
    if broad != others:
        return None
    batch = math.prod(size for size, shared in zip(outer[:-1], broad[:-1], strict=True) if not shared)
    return batch, math.prod(outer) // max(batch, 1), 1 if broad[-1] else outer[-1]


def _repeats(net: OnnxNet, name: str) -> int:
    """How often each head of keys or values stands in what attention takes."""
    repeats = 1
    while (maker := net.makers.get(name)) is not None:
        inner = net.scaled(maker) or maker.input(0)
        if maker.kind in REPEATING:
            repeats *= net.tensor(name).elements // max(net.tensor(inner).elements, 1)
        elif maker.kind not in PLAIN and net.scaled(maker) is None:
            break
        name = inner
    return repeats


Kept = NDArray[np.bool_]
UNKNOWN = np.zeros((0, 0), np.bool_)
"""Of a mask whose values are not known."""


def added_mask(net: OnnxNet, name: str) -> Kept | None:
    """Pairs that a mask lets through that is added to scores; none where it adds other numbers to those."""
    value = net.model.value(name)
    if value is None:
        return UNKNOWN
    if value.dtype == np.bool_:
        return value
    kept = value > HIDDEN
    return None if np.any(value[kept] != 0) else np.asarray(kept)


def _chosen_mask(net: OnnxNet, node: OnnxNode) -> Kept | None:
    """Pairs that a mask lets through that chooses between scores and a number."""
    condition = net.model.value(node.input(0))
    scores_first = not net.constant(node.input(1))
    other = net.model.value(node.input(2 if scores_first else 1))
    if condition is None or other is None:
        return UNKNOWN
    if np.any(other > HIDDEN):
        return None
    return np.asarray(condition if scores_first else ~condition, np.bool_)


def _joined(masks: list[Kept | None], shape: tuple[int, ...]) -> Mask | None:
    """What masks say together; none where one is no mask."""
    kept = np.ones((1, 1), np.bool_)
    for mask in masks:
        if mask is None:
            return None
        if mask is UNKNOWN:
            return Mask(known=False)
        kept = kept & mask
    return mask_of(kept, shape)


def mask_of(kept: Kept, shape: tuple[int, ...]) -> Mask:
    """What a mask says of pairs, for scores of a shape."""
    if kept.all():
        return Mask()
    queries, keys = shape[-2:]
    kept = kept.reshape((-1, *(1, 1, *kept.shape)[-2:]))
    if np.any(kept != kept[:1]):
        return Mask(known=False)
    own = kept[0]
    seen = int(np.flatnonzero(own.any(0)).max(initial=-1)) + 1 if own.shape[1] > 1 else keys
    if seen and own[:, :seen].all():
        return Mask(keys=seen)
    if not queries <= seen or queries * seen > MOST_ELEMENTS:
        return Mask(known=False)
    own = np.broadcast_to(own[:, :seen], (queries, seen))
    distance = np.arange(queries)[:, None] + seen - queries - np.arange(seen)[None]
    if np.array_equal(own, distance >= 0):
        return Mask(causal=True, keys=seen)
    window = int(own[-1].sum())
    if np.array_equal(own, (distance >= 0) & (distance < window)):
        return Mask(causal=True, window=window, keys=seen)
    return Mask(known=False)


def fuse_rotary(net: OnnxNet) -> None:
    """Replace what turns pairs of columns by constant angles: x cos + (-x2, x1) sin."""
    for node in list(net.nodes):
        products = [net.makers.get(name) for name in node.inputs]
        if node.kind != "Add" or len(products) != 2 or any(each is None or each.kind != "Mul" for each in products):
            continue
        for first, second in (products, reversed(products)):
            assert first is not None
            assert second is not None
            if (group := _turned(net, first, second)) is not None:
                group.append(node)
                if net.closed(group, node.output):
                    net.replace(group, OnnxNode(node.name, "Rotary", (net.others(first)[0][0],), node.outputs))
                    break


def _turned(net: OnnxNet, plain: OnnxNode, crossed: OnnxNode) -> list[OnnxNode] | None:
    """Nodes that a rotation is made of, but its sum."""
    of, across = net.others(plain), net.others(crossed)
    if [len(each) for each in (*of, *across)] != [1, 1, 1, 1]:
        return None
    joined = net.makers.get(across[0][0])
    if joined is None or joined.kind != "Concat" or len(joined.inputs) != 2:
        return None
    negated, half = (net.makers.get(name) for name in joined.inputs)
    if negated is None or negated.kind != "Neg" or half is None:
        return None
    other = net.makers.get(negated.input(0))
    if other is None or any(each.kind not in ("Slice", "Split") or each.input(0) != of[0][0] for each in (half, other)):
        return None
    return list({id(each): each for each in (plain, crossed, joined, negated, half, other)}.values())


__all__ = ["Kept", "Mask", "added_mask", "fuse_attention", "fuse_rotary", "last_axis", "mask_of"]
