"""Constants that no time depends on: the base of rotary angles, of a configuration, and the ε of norms, of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.tile import NpuTile
from siliconloom.execution.reference import ROPE_BASE
from siliconloom.workloads import Graph, Operator, Vector
from siliconloom.workloads.architecture import EPSILON
from siliconloom.workloads.load import workload_document


class ModelConstants(Struct, frozen=True):
    """Base of rotary angles, and what norms add to a variance."""

    base: float = ROPE_BASE
    epsilon: float = EPSILON


def rope_base_of(name: str) -> float:
    """Base of rotary angles of a workload by file or library name, as its configuration has it.

    Raises
    ------
    LoomError
        For one that is no number.
    NotSupported
        For angles that are scaled: they are not those of a base alone.
    """
    data = workload_document(name)[0].data
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


def constants_of(name: str, graph: Graph) -> ModelConstants:
    """Both, of a workload by file or library name and its graph; raises as `rope_base_of` does."""
    return ModelConstants(rope_base_of(name), next((e for e in map(_epsilon, graph.operators()) if e), 0.0))


def _epsilon(operator: Operator) -> float:
    return operator.epsilon if isinstance(operator, Vector) else 0.0


def epsilon_of(graph: Graph, asked: float | None, chip: Chip) -> float:
    """What norms in real numbers add to the mean square of a row: what is asked for, or what those of a graph do.

    Raises
    ------
    NotSupported
        Where something else is asked for than the programs of a chip that computes in floating point add.
    """
    own = next((e for e in map(_epsilon, graph.operators()) if e), 0.0)
    if asked is None or asked == own:
        return own
    if isinstance(chip.tile, NpuTile) and not chip.tile.circuit_format.is_integer:
        raise NotSupported(
            f"--epsilon {asked:g} where {chip.name} adds {own:g}; --set workload.model.rms_norm_eps, or the key of the "
            "model's family, changes both"
        )
    return asked


def _number(name: str, key: str, value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
        raise LoomError(f"{name}: {key} must be a number of at least {least:g} (got {value!r})")
    return float(value)


__all__ = ["ModelConstants", "constants_of", "epsilon_of", "rope_base_of"]
