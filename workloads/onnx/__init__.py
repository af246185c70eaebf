"""Workloads that are ONNX files: what their nodes are in operators of this package."""
