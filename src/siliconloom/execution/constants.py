"""Constants that a configuration has and no time depends on: the base of rotary angles, and the ε of norms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.execution.reference import EPSILON, ROPE_BASE
from siliconloom.workloads.load import workload_document

EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")


@dataclass(frozen=True)
class ModelConstants:
    """Base of rotary angles, and what norms add to a variance."""

    base: float = ROPE_BASE
    epsilon: float = EPSILON


def constants_of(name: str) -> ModelConstants:
    """Constants of a workload by file or library name, as its configuration has them.

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
        return ModelConstants()
    angles = model.get("rope_parameters")
    angles = angles if isinstance(angles, Mapping) else {}
    for scaling in (model.get("rope_scaling"), angles):
        kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, Mapping) else "default"
        if kind != "default":
            raise NotSupported(f"values of a model whose rotary angles are scaled ({name}: {kind})")
    epsilon = next((model[key] for key in EPSILONS if model.get(key) is not None), EPSILON)
    base = next((each for each in (model.get("rope_theta"), angles.get("rope_theta")) if each is not None), ROPE_BASE)
    return ModelConstants(_number(name, "rope_theta", base, 1.0), _number(name, "the norms' epsilon", epsilon, 0.0))


def _number(name: str, key: str, value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
        raise LoomError(f"{name}: {key} must be a number of at least {least:g} (got {value!r})")
    return float(value)


__all__ = ["ModelConstants", "constants_of"]
