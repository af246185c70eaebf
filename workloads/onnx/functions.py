"""Finds functions that a file has in parts: activations of element-wise nodes, norms of means, squares and roots.

Exporters write the same function in many ways, so none is looked for by its nodes. Instead every group of nodes around
a characteristic one is computed on a few numbers, and is the function whose values these are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.models.onnx import OnnxNode
from siliconloom.workloads.onnx.net import OnnxNet

Numbers = NDArray[np.float64]
DEEPEST = 8
"""Nodes from a characteristic one back to the operand of a function."""
LARGEST = 24
"""Nodes of a function."""
NEAR = 2e-3
SMALL = 1e-2
"""What a norm adds to a mean square is less."""
CHARACTERISTIC = ("Erf", "Tanh", "Sigmoid", "HardSigmoid", "Sqrt", "Pow")
"""Nodes that some function here is made around."""


def _erf(x: Numbers) -> Numbers:
    return np.asarray(np.vectorize(math.erf, otypes=[float])(x), np.float64)


def _logistic(x: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-x))


UNARY: dict[str, Callable[[Numbers], Numbers]] = {
    "Erf": _erf,
    "Tanh": np.tanh,
    "Sigmoid": _logistic,
    "Exp": np.exp,
    "Sqrt": np.sqrt,
    "Neg": np.negative,
    "Reciprocal": lambda x: 1 / x,
}
BINARY: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
}
PARTS = {*UNARY, *BINARY, "ReduceMean"}


def _centred(x: Numbers) -> Numbers:
    return np.asarray(x - x.mean(-1, keepdims=True), np.float64)


FUNCTIONS: dict[str, Callable[[Numbers], Numbers]] = {
    "Gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "Silu": lambda x: x * _logistic(x),
    "QuickGelu": lambda x: x * _logistic(1.702 * x),
    "LayerNormalization": lambda x: _centred(x) / np.sqrt((_centred(x) ** 2).mean(-1, keepdims=True)),
    "RMSNormalization": lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True)),
}
"""What is looked for. A GELU with a tanh has the values of the other one as far as is looked."""
NORMS = ("LayerNormalization", "RMSNormalization")
PROBE = np.random.default_rng(7).normal(size=(6, 16)) * 2


def fuse_functions(net: OnnxNet) -> None:
    """Replace groups of nodes that compute a known function of one operand by a node of its name."""
    for node in list(net.nodes):
        if node.kind in CHARACTERISTIC and net.makers.get(node.output) is node:
            _fuse(net, node)


def fuse_scales(net: OnnxNet) -> None:
    """Let norms take the products and sums behind them that have a constant for each column."""
    for node in list(net.nodes):
        if node.kind not in NORMS or node.input(1):
            continue
        made, inputs = node, [node.input(0)]
        group = [node]
        for kind in ("Mul", "Add"):
            user = net.sole_user(made.output)
            if user is None or user.kind != kind or (kind == "Add" and len(inputs) < 2):
                break
            _, constants = net.others(user)
            if len(constants) != 1 or net.tensor(constants[0]).elements != net.shape(node.output)[-1]:
                break
            inputs.append(constants[0])
            group.append(user)
            made = user
        net.replace(group, OnnxNode(node.name, node.kind, tuple(inputs), (made.output,), node.attributes))


def fuse_gates(net: OnnxNet) -> None:
    """Join an activation and the product of its result with another one of the same shape."""
    for node in list(net.nodes):
        user = net.sole_user(node.output)
        if node.kind not in ("Gelu", "Silu") or user is None or user.kind != "Mul":
            continue
        other = [name for name in user.inputs if name != node.output]
        if len(other) != 1 or net.constant(other[0]) or net.shape(other[0]) != net.shape(node.output):
            continue
        gated = OnnxNode(node.name, f"Gated{node.kind}", (node.input(0), other[0]), user.outputs)
        net.replace((node, user), gated)


def _fuse(net: OnnxNet, node: OnnxNode) -> None:
    """A group of most nodes is taken: a layer norm is an RMS norm of what it makes first."""
    matches = [(operand, _matched(net, operand, node)) for operand in _operands(net, node)]
    found = [(operand, *match) for operand, match in matches if match is not None]
    if not found:
        return
    operand, kind, group, epsilon = max(found, key=lambda match: len(match[2]))
    last = group[-1]
    attributes: dict[str, Any] = {"epsilon": epsilon} if kind in NORMS else {}
    net.replace(group, OnnxNode(last.name, kind, (operand,), (last.output,), attributes))


def _operands(net: OnnxNet, node: OnnxNode) -> list[str]:
    """Tensors that a function around a node may be of, the nearest first."""
    found: dict[str, None] = {}
    waiting = [(name, 1) for name in net.others(node)[0]]
    while waiting:
        name, depth = waiting.pop(0)
        if name in found:
            continue
        found[name] = None
        maker = net.makers.get(name)
        if maker is not None and maker.kind in PARTS and depth < DEEPEST:
            waiting += [(each, depth + 1) for each in net.others(maker)[0]]
    return list(found)


def _matched(net: OnnxNet, operand: str, node: OnnxNode) -> tuple[str, list[OnnxNode], float] | None:
    """The largest group that is a known function of an operand and has a node: its name, its nodes, what it adds."""
    values: dict[str, Numbers] = {operand: PROBE}
    makers: dict[str, OnnxNode] = {}
    waiting, best = [operand], None
    small: dict[str, float] = {}
    while waiting and len(makers) < LARGEST:
        for user in net.users.get(waiting.pop(0), ()):
            value = None if user.output in values else _computed(net, user, values, small)
            if value is None:
                continue
            values[user.output], makers[user.output] = value, user
            waiting.append(user.output)
            kind = _function(value)
            group = _group(makers, user.output) if kind else []
            if kind and node in group and net.closed(group, user.output):
                epsilon = next((small[each.name] for each in group if each.name in small), 0.0)
                best = kind, group, epsilon
    return best


def _function(value: Numbers) -> str | None:
    if value.shape != PROBE.shape:
        return None
    return next((kind for kind, values in REFERENCE.items() if np.allclose(value, values, rtol=0, atol=NEAR)), None)


REFERENCE = {kind: function(PROBE) for kind, function in FUNCTIONS.items()}


def _group(makers: dict[str, OnnxNode], output: str) -> list[OnnxNode]:
    """Nodes that a result comes of, itself the last."""
    found: dict[str, None] = {}
    waiting = [output]
    while waiting:
        name = waiting.pop()
        if name in makers and name not in found:
            found[name] = None
            waiting += makers[name].inputs
    return [node for name, node in makers.items() if name in found and name != output] + [makers[output]]


def _computed(net: OnnxNet, node: OnnxNode, values: dict[str, Numbers], small: dict[str, float]) -> Numbers | None:
    """Values of a node on the probe, where all of its operands are known or one number."""
    if node.kind == "ReduceMean":
        rank = len(net.shape(node.input(0)))
        whole = node.attributes.get("keepdims", 1) == 1 and net.axes(node) == (rank - 1,)
        return values[node.input(0)].mean(-1, keepdims=True) if whole else None
    if node.kind not in PARTS:
        return None
    operands = []
    for name in node.inputs:
        known = values.get(name)
        if known is None:
            one = net.scalar(name)
            if one is None:
                return None
            if node.kind == "Add" and 0 < one < SMALL:
                small[node.name] = one
            known = np.float64(one).reshape(1, 1)
        operands.append(known)
    with np.errstate(all="ignore"):
        if len(operands) == 1 and node.kind in UNARY:
            return UNARY[node.kind](operands[0])
        return BINARY[node.kind](*operands) if len(operands) == 2 and node.kind in BINARY else None


__all__ = ["fuse_functions", "fuse_gates", "fuse_scales"]
