"""Names of what the library holds, read without loading any of it."""

from __future__ import annotations

from pathlib import Path

LIBRARY = Path(__file__).resolve().parent / "library"


def library_names(folder: Path) -> list[str]:
    """Names of the entries of a library folder, sorted."""
    return sorted(p.stem for p in folder.glob("*.yaml"))


def chip_names() -> list[str]:
    """Names of the library's chips."""
    return _names_of("chip")


def system_names() -> list[str]:
    """Names of the library's systems."""
    return _names_of("system")


def gpu_names() -> list[str]:
    """Names of the library's GPUs."""
    return library_names(LIBRARY / "gpu")


def network_names() -> list[str]:
    """Names of the library's bare networks."""
    return library_names(LIBRARY / "network")


def _names_of(kind: str) -> list[str]:
    names = library_names(LIBRARY)
    return [n for n in names if f"\nkind: {kind}\n" in "\n" + (LIBRARY / f"{n}.yaml").read_text(encoding="utf-8")]


__all__ = ["LIBRARY", "chip_names", "gpu_names", "library_names", "network_names", "system_names"]
