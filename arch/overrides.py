"""Which description an override on the command line is meant for."""

from __future__ import annotations


def split_overrides(assignments: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Overrides of the chip, and those of the workload with their leading ``workload.`` taken off."""
    chip = [(path, value) for path, value in assignments if not path.startswith("workload.")]
    workload = [(path.removeprefix("workload."), value) for path, value in assignments if path.startswith("workload.")]
    return chip, workload


__all__ = ["split_overrides"]
