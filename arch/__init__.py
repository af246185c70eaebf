"""What a machine is: typed descriptions, units of measure, the instruction set, technology tables."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siliconloom.arch.array import SystolicArray
    from siliconloom.arch.datatype import DataType
    from siliconloom.arch.description import Chip, load_chip
    from siliconloom.arch.document import Description, Document
    from siliconloom.arch.errors import CheckFailed, DescriptionError, LoomError, NotSupported
    from siliconloom.arch.kinds import machine_kind
    from siliconloom.arch.memory import Memory
    from siliconloom.arch.names import chip_names, system_names
    from siliconloom.arch.pim import PimTile
    from siliconloom.arch.system import System, load_group, load_system
    from siliconloom.arch.tile import NpuTile, SystolicTile

MODULES = {
    "array": ("SystolicArray",),
    "datatype": ("DataType",),
    "description": ("Chip", "load_chip"),
    "document": ("Description", "Document"),
    "errors": ("CheckFailed", "DescriptionError", "LoomError", "NotSupported"),
    "kinds": ("machine_kind",),
    "memory": ("Memory",),
    "names": ("chip_names", "system_names"),
    "pim": ("PimTile",),
    "system": ("System", "load_group", "load_system"),
    "tile": ("NpuTile", "SystolicTile"),
}
"""Where each name comes from; it is imported when it is first asked for, so that an error costs no description."""
_MODULE_OF = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "CheckFailed",
    "Chip",
    "DataType",
    "Description",
    "DescriptionError",
    "Document",
    "LoomError",
    "Memory",
    "NotSupported",
    "NpuTile",
    "PimTile",
    "System",
    "SystolicArray",
    "SystolicTile",
    "chip_names",
    "load_chip",
    "load_group",
    "load_system",
    "machine_kind",
    "system_names",
]
