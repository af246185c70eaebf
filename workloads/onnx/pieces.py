"""Which piece of a weight a constant is made of, where a file splits one weight into several."""

from __future__ import annotations

from typing import Any

from siliconloom.models.onnx import OnnxNode
from siliconloom.workloads.onnx.net import OnnxNet

Piece = list[tuple[str, dict[int, range | list[int]]]]
"""Tensors that something was taken of, from the weight on, and the places along their axes; others are whole."""


def piece_of(net: OnnxNet, name: str, root: str) -> Piece:
    """What a constant has of a weight that it is made of, at most."""
    found: Piece = []
    while (maker := net.constants.get(name)) is not None and name != root:
        inner = [each for each in maker.inputs if each and root in net.roots(each)]
        if len(inner) != 1:
            break
        if inner[0] == maker.input(0) and maker.kind in TAKING:
            found.append((inner[0], TAKING[maker.kind](net, maker, name)))
        name = inner[0]
    return found[::-1]


def apart(first: Piece, second: Piece) -> bool:
    """Whether two pieces of one weight have surely nothing in common."""
    for (of, places), (other, others) in zip(first, second, strict=False):
        if of != other:
            return False
        if not all(_meet(places[axis], others[axis]) for axis in places.keys() & others.keys()):
            return True
    return False


def _meet(first: range | list[int], second: range | list[int]) -> bool:
    """Whether some place is in both."""
    if not first or not second:
        return False
    if isinstance(first, range) and isinstance(second, range) and abs(first.step) == abs(second.step) == 1:
        begin, end = (max(min(a[0], a[-1]) for a in (first, second)), min(max(a[0], a[-1]) for a in (first, second)))
        return begin <= end
    return not set(first).isdisjoint(second)


def _split(net: OnnxNet, node: OnnxNode, name: str) -> dict[int, range | list[int]]:
    axis = int(node.attributes.get("axis", 0)) % max(len(net.shape(node.input(0))), 1)
    begin = 0
    for output in node.outputs:
        end = begin + (net.shape(output)[axis] if output else 0)
        if output == name:
            return {axis: range(begin, end)}
        if not output:  # whose size nobody has asked for
            break
        begin = end
    return {}


def _slice(net: OnnxNet, node: OnnxNode, _: str) -> dict[int, range | list[int]]:
    shape = net.shape(node.input(0))
    keys = ("starts", "ends", "axes", "steps")
    values: list[Any] = [node.attributes.get(key) for key in keys]
    for number in range(1, len(node.inputs)):
        if node.input(number):
            value = net.model.value(node.input(number))
            if value is None:
                return {}
            values[number - 1] = value.reshape(-1).tolist()
    starts, ends, axes, steps = values
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    return {
        axis % len(shape): range(*slice(start, end, step).indices(shape[axis]))
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
    }


def _gather(net: OnnxNet, node: OnnxNode, _: str) -> dict[int, range | list[int]]:
    shape, value = net.shape(node.input(0)), net.model.value(node.input(1))
    if value is None or not shape:
        return {}
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    return {axis: [place % shape[axis] for place in value.reshape(-1).tolist()]}


TAKING = {"Split": _split, "Slice": _slice, "Gather": _gather}
"""Nodes whose result is a part of their operand."""

__all__ = ["Piece", "apart", "piece_of"]
