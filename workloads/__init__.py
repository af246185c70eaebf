"""What a machine must do: transformer graphs from YAML or Hugging Face config.json, GEMM lists, convolutions."""

from siliconloom.workloads.graph import Attention, Gemm, Graph, Operator, Phase, Vector
from siliconloom.workloads.load import load_workload, workload_names, workload_schema

__all__ = [
    "Attention", "Gemm", "Graph", "Operator", "Phase", "Vector", "load_workload", "workload_names",
    "workload_schema",
]  # fmt: skip
