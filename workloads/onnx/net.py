"""The nodes of an ONNX file that depend on its inputs, and how some of them are replaced by one that does the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from siliconloom.models.onnx import OnnxModel, OnnxNode, OnnxTensor

PASSED = ("Identity", "Dropout", "Cast")
"""Nodes whose result is their operand, perhaps in another format."""


class OnnxNet:
    """Nodes in program order, without constants and without those whose result is their operand."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.path = model.path
        self.known_as: dict[str, str] = {}
        """Operands of nodes that are passed by, by the names of their results."""
        self.nodes: list[OnnxNode] = []
        self.constants: dict[str, OnnxNode] = {}
        """Makers of what depends on no input."""
        for node in model.nodes:
            inputs = tuple(self.known_as.get(name, name) for name in node.inputs)
            if node.kind == "Gemm" and node.attributes.get("beta", 1.0) == 0:
                inputs = inputs[:2]  # times zero, its third operand is none
            if model.tensors[next(name for name in node.outputs if name)].constant:
                self.constants.update(dict.fromkeys(node.outputs, node))
            elif node.kind in PASSED and not (node.kind == "Cast" and self._counts(inputs[0])):
                self.known_as[node.output] = inputs[0]
            else:
                self.nodes.append(OnnxNode(node.name, node.kind, inputs, node.outputs, node.attributes))
        self.outputs = {self.known_as.get(name, name) for name in model.outputs}
        self._drop_unread()
        self._index()

    def _drop_unread(self) -> None:
        """Leave out nodes that no result of the model depends on."""
        needed, kept = set(self.outputs), list[OnnxNode]()
        for node in reversed(self.nodes):
            if needed.intersection(filter(None, node.outputs)):
                kept.append(node)
                needed.update(node.inputs)
        self.nodes = kept[::-1]

    def _counts(self, name: str) -> bool:
        return not self.model.tensors[name].format

    def _index(self) -> None:
        self.makers = {name: node for node in self.nodes for name in node.outputs if name}
        self.users: dict[str, list[OnnxNode]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                self.users.setdefault(name, []).append(node)

    def tensor(self, name: str) -> OnnxTensor:
        """A tensor by its name."""
        return self.model.tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.model.tensors[name].shape

    def constant(self, name: str) -> bool:
        """Whether no input has to do with a tensor."""
        return bool(name) and self.model.tensors[name].constant

    def scalar(self, name: str) -> float | None:
        """The value of a constant that has one element."""
        return self.model.scalar(name) if name else None

    def sole_user(self, name: str) -> OnnxNode | None:
        """The only node that takes a result, where there is one and it is no result of the model."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.outputs else None

    def others(self, node: OnnxNode) -> tuple[list[str], list[str]]:
        """Operands of a node that inputs have to do with, and those that are constant."""
        names = [name for name in node.inputs if name]
        return [n for n in names if not self.constant(n)], [n for n in names if self.constant(n)]

    def scaled(self, node: OnnxNode) -> str | None:
        """The operand of a product with, or a quotient by, one number; none of other nodes."""
        if node.kind not in ("Mul", "Div") or len(node.inputs) != 2:
            return None
        first, second = node.inputs
        if self.scalar(second) is not None and not self.constant(first):
            return first
        return second if node.kind == "Mul" and self.scalar(first) is not None and not self.constant(second) else None

    def axes(self, node: OnnxNode) -> tuple[int, ...] | None:
        """Axes that a node reduces, counted from the first; none where they are not known, all where it names none."""
        rank = len(self.shape(node.input(0)))
        axes: Any = node.attributes.get("axes")
        if axes is None and node.input(1):
            value = self.model.value(node.input(1)) if self.constant(node.input(1)) else None
            if value is None:
                return None
            axes = value.reshape(-1).tolist()
        return tuple(range(rank)) if not axes else tuple(sorted(int(axis) % rank for axis in axes))

    def closed(self, group: Collection[OnnxNode], output: str) -> bool:
        """Whether nobody outside a group takes what it makes, but for one result."""
        inside = set(map(id, group))
        made = {name for node in group for name in node.outputs if name and name != output}
        if made & self.outputs:
            return False
        return all(id(user) in inside for name in made for user in self.users.get(name, ()))

    def replace(self, group: Iterable[OnnxNode], made: OnnxNode) -> None:
        """Put one node in the place of a group: where the node stood that made the same result."""
        gone = {id(node) for node in group}
        last = self.makers[made.output]
        kept = []
        for node in self.nodes:
            if node is last:
                kept.append(made)
            elif id(node) not in gone:
                kept.append(node)
        self.nodes = kept
        self._index()

    def roots(self, name: str) -> tuple[str, ...]:
        """Weights of the file that a constant is made of."""
        found: dict[str, None] = {}
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each in seen or not each:
                continue
            seen.add(each)
            maker = self.constants.get(each)
            if maker is not None and maker.kind != "Constant":
                waiting += maker.inputs
            elif (maker is not None or each in self.model.initialisers) and self.tensor(each).format:
                found[each] = None
        return tuple(found)


__all__ = ["OnnxNet"]
