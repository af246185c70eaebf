"""Names of the library's cascades, read without loading any of them."""

from __future__ import annotations

from pathlib import Path

from siliconloom.arch.names import library_names

LIBRARY = Path(__file__).resolve().parent / "library"


def cascade_names() -> list[str]:
    """Names of the library's cascades."""
    return library_names(LIBRARY)


__all__ = ["LIBRARY", "cascade_names"]
