"""Products of an ONNX file with what belongs to them: biases and normalisations by channel go into their weights."""

from __future__ import annotations

from typing import Any

from siliconloom.models.onnx import OnnxNode
from siliconloom.workloads.onnx.net import OnnxNet


def fuse_biases(net: OnnxNet) -> None:
    """Give products of weights the biases, and convolutions the normalisation, that stand behind them."""
    for node in list(net.nodes):
        if node.kind == "Conv":
            _normalise(net, node)
        elif node.kind == "MatMul" and any(net.constant(name) for name in node.inputs):
            _add_bias(net, node, net.shape(node.output)[-1] if net.constant(node.input(1)) else 0)


def _normalise(net: OnnxNet, node: OnnxNode) -> None:
    user = net.sole_user(node.output)
    channels = net.shape(node.input(1))[0]
    if user is None or not net.constant(node.input(1)):
        return
    if user.kind == "BatchNormalization" and len([name for name in user.outputs if name]) == 1:
        inputs = (node.input(0), node.input(1), user.input(2))
        net.replace((node, user), OnnxNode(node.name, node.kind, inputs, (user.output,), node.attributes))
    elif user.kind == "Add" and not node.input(2):
        _, constants = net.others(user)
        spatial = len(net.shape(node.output)) - 2
        if len(constants) == 1 and net.shape(constants[0])[-1 - spatial :] == (channels, *(1,) * spatial):
            _join(net, node, user, constants[0])


def _add_bias(net: OnnxNet, node: OnnxNode, columns: int) -> None:
    user = net.sole_user(node.output)
    if user is None or user.kind != "Add":
        return
    _, constants = net.others(user)
    if len(constants) == 1 and net.tensor(constants[0]).elements == columns == net.shape(constants[0])[-1]:
        _join(net, node, user, constants[0])


def _join(net: OnnxNet, node: OnnxNode, user: OnnxNode, bias: str) -> None:
    inputs = (node.input(0), node.input(1), bias)
    net.replace((node, user), OnnxNode(node.name, node.kind, inputs, user.outputs, node.attributes))


def product_shape(first: tuple[int, ...], second: tuple[int, ...], weight: bool) -> dict[str, Any]:
    """Sizes of a product of two tensors, as NumPy multiplies them; ``weight`` is whether the second one is stored."""
    first = (1, *first) if len(first) == 1 else first
    second = (*second, 1) if len(second) == 1 else second
    rank = max(len(first), len(second))
    left, right = ((1,) * (rank - len(shape)) + shape for shape in (first, second))
    outer = [max(a, b) if min(a, b) else 0 for a, b in zip(left[:-2], right[:-2], strict=True)]
    batch = rows = 1
    for size, own in zip(outer, right[:-2], strict=True):
        if own == 1:  # all of these rows are multiplied with the same matrix
            rows *= size
        else:
            batch *= size
    return {"m": rows * left[-2], "n": right[-1], "k": left[-1], "batch": batch, "weight": weight}


def convolution_shape(net: OnnxNet, node: OnnxNode) -> dict[str, Any]:
    """Sizes of a convolution as a product of the patches under its kernel (im2col)."""
    weight, result = net.shape(node.input(1)), net.shape(node.output)
    groups = int(node.attributes.get("group", 1))
    taps = area = 1
    for size in weight[1:]:
        taps *= size
    for size in result[2:]:
        area *= size
    return {"m": result[0] * area, "n": weight[0] // groups, "k": taps, "batch": groups, "weight": True}


__all__ = ["convolution_shape", "fuse_biases", "product_shape"]
