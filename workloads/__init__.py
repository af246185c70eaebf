"""What a machine must do: transformers, GEMM lists, convolutions, ONNX files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siliconloom.workloads.graph import Attention, Collective, Gemm, Graph, Operator, Phase, SharedAttention, Vector
    from siliconloom.workloads.load import load_workload, workload_schema
    from siliconloom.workloads.names import workload_names

MODULES = {
    "graph": ("Attention", "Collective", "Gemm", "Graph", "Operator", "Phase", "SharedAttention", "Vector"),
    "load": ("load_workload", "workload_schema"),
    "names": ("workload_names",),
}
"""Where each name comes from; it is imported when it is first asked for."""
_MODULE_OF = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "Attention",
    "Collective",
    "Gemm",
    "Graph",
    "Operator",
    "Phase",
    "SharedAttention",
    "Vector",
    "load_workload",
    "workload_names",
    "workload_schema",
]
