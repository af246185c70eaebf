"""What a machine must do: transformer graphs from YAML or Hugging Face config.json, GEMM lists, convolutions."""

from siliconloom.workloads.graph import Attention, Collective, Gemm, Graph, Operator, Phase, SharedAttention, Vector
from siliconloom.workloads.load import load_workload, workload_names, workload_schema

__all__ = [
    "Attention", "Collective", "Gemm", "Graph", "Operator", "Phase", "SharedAttention", "Vector", "load_workload",
    "workload_names", "workload_schema",
]  # fmt: skip
