"""Libraries of other houses that only some sweeps need, and which extra of this package brings them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from siliconloom.arch.errors import LoomError


def required(module: str, extra: str, what: str) -> Any:
    """A module of an extra; raises `LoomError` that says what to install where it is absent."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        name = module.partition(".")[0]
        raise LoomError(f"{what} needs {name}: pip install siliconloom[{extra}]") from None


__all__ = ["required"]
