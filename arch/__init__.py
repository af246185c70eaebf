"""What a machine is: typed descriptions, units of measure, the instruction set, technology tables."""

from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import (
    Chip,
    Memory,
    NpuTile,
    PimTile,
    System,
    SystolicArray,
    SystolicTile,
    chip_names,
    load_chip,
    load_group,
    load_system,
    machine_kind,
    system_names,
)  # fmt: skip
from siliconloom.arch.document import Description, Document
from siliconloom.arch.errors import CheckFailed, DescriptionError, LoomError, NotSupported

__all__ = [
    "CheckFailed", "Chip", "DataType", "Description", "DescriptionError", "Document", "LoomError", "Memory",
    "NotSupported", "NpuTile", "PimTile", "System", "SystolicArray", "SystolicTile", "chip_names", "load_chip",
    "load_group", "load_system", "machine_kind", "system_names",
]  # fmt: skip
