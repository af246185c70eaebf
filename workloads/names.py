"""Names of the library's workloads, read without loading any of them."""

from __future__ import annotations

from pathlib import Path

from siliconloom.arch.names import library_names

LIBRARY = Path(__file__).resolve().parent / "library"


def workload_names() -> list[str]:
    """Names of the library's workloads."""
    return library_names(LIBRARY)


__all__ = ["LIBRARY", "workload_names"]
