"""Constants that no time depends on: the base of rotary angles, of a configuration, and the ε of norms, of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siliconloom.arch.document import Document, find_file
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.execution.reference import ROPE_BASE
from siliconloom.workloads import Graph, Vector
from siliconloom.workloads.names import LIBRARY


def rope_base_of(name: str) -> float:
    """Base of rotary angles of a workload by file or library name, as its configuration has it.

    Raises
    ------
    LoomError
        For one that is no number.
    NotSupported
        For angles that are scaled: they are not those of a base alone.
    """
    data = Document.load(find_file(name, LIBRARY, "workload", suffixes=(".yaml", ".onnx"))).data
    model = data.get("model", data)
    if not isinstance(model, Mapping):
        return ROPE_BASE
    angles = model.get("rope_parameters")
    angles = angles if isinstance(angles, Mapping) else {}
    for scaling in (model.get("rope_scaling"), angles):
        kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, Mapping) else "default"
        if kind != "default":
            raise NotSupported(f"values of a model whose rotary angles are scaled ({name}: {kind})")
    base = next((each for each in (model.get("rope_theta"), angles.get("rope_theta")) if each is not None), ROPE_BASE)
    return _number(name, "rope_theta", base, 1.0)


def epsilon_of(graph: Graph) -> float:
    """What the norms of a graph add to the mean square of a row: the first one's."""
    return next((o.epsilon for o in graph.operators() if isinstance(o, Vector) and o.epsilon), 0.0)


def _number(name: str, key: str, value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
        raise LoomError(f"{name}: {key} must be a number of at least {least:g} (got {value!r})")
    return float(value)


__all__ = ["epsilon_of", "rope_base_of"]
