"""C for an NPU tile: instructions packed by the tables of `arch.word`, and a driver over the register map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from siliconloom.arch.isa import SEMAPHORE_LIMIT, UNIT_OF, Opcode, Unit
from siliconloom.arch.opcodes import Format
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import COMPUTE, DTYPES, GATHER, HEADER, LEVELS, SEMAPHORES, TRANSFER, WORD_BYTES, BitField
from siliconloom.rtl.npu.registers import COUNTERS, Cause

FOLDER = "software"
TABLES = {
    Format.HEADER: ("NULL", 0),
    Format.TRANSFER: ("transfer", len(TRANSFER)),
    Format.GATHER: ("gather", len(GATHER)),
    Format.COMPUTE: ("compute", len(COMPUTE)),
}
"""Table of the fields that follow the header, and how many there are."""
TEMPLATES = ("program.h", "program.c", "driver.h", "driver.c")


def software_files(top: str, digest: str, parameters: Mapping[str, Any], units: Sequence[str]) -> dict[str, str]:
    """C sources and headers, text by file name.

    Parameters
    ----------
    top
        Prefix of every name.
    digest
        Of the description, for the header's comment.
    parameters
        Of the tile; the numbers among them become constants.
    units
        That the tile has, in the order of their codes.
    """
    constants = [(name.upper(), value) for name, value in parameters.items() if isinstance(value, int)]
    constants = [(name, value) for name, value in constants if name != "WORD_BYTES"]
    members = [field.name for field in _distinct((*HEADER, *GATHER, *COMPUTE))]
    parts = [name.partition(".")[2] for name in members if "." in name]
    strides = [part for part in parts if part.startswith("stride")]
    assert set(strides) == {f"stride{level}" for level in range(LEVELS)}
    address = dict.fromkeys("stride" if part in strides else part for part in parts)
    enums = [
        ("opcode", [(opcode.name, opcode.value) for opcode in Opcode]),
        ("unit", [(unit.name, unit.value) for unit in Unit]),
        ("dtype", [(dtype.name, code) for code, dtype in enumerate(DTYPES)]),
        ("function", [(function.name, function.code) for function in VectorFunction]),
    ]
    formats = []
    by_code = {int(opcode): opcode for opcode in Opcode}
    for code in range(max(Opcode) + 1):
        opcode = by_code.get(code)
        table, count = TABLES[opcode.spec.format if opcode is not None else Format.HEADER]
        formats.append((table, count, int(UNIT_OF.get(opcode, -1)) if opcode is not None else -1))
    environment = Environment(
        loader=PackageLoader("siliconloom.rtl.npu", "."),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    values: dict[str, Any] = {
        "top": top,
        "upper": top.upper(),
        "digest": digest,
        "parameters": constants,
        "word_bytes": WORD_BYTES,
        "levels": LEVELS,
        "semaphores": SEMAPHORES,
        "semaphore_limit": SEMAPHORE_LIMIT,
        "enums": enums,
        "address": [(part, f"[{top.upper()}_LEVELS]" if part == "stride" else "") for part in address],
        "fields": [name for name in members if "." not in name],
        "addresses": list(dict.fromkeys(name.partition(".")[0] for name in members if "." in name)),
        "tables": [
            (name, _rows(fields))
            for name, fields in (("header", HEADER), ("transfer", TRANSFER), ("gather", GATHER), ("compute", COMPUTE))
        ],
        "formats": formats,
        "causes": [(cause.name, cause.value) for cause in Cause],
        "units": units,
        "counters": COUNTERS,
    }
    return {f"{FOLDER}/{top}_{name}": environment.get_template(f"{name}.j2").render(**values) for name in TEMPLATES}


def _distinct(fields: Iterable[BitField]) -> list[BitField]:
    return list({field.name: field for field in fields}.values())


def _rows(fields: Iterable[BitField]) -> list[tuple[str, int, int]]:
    """Member of the C structure, bits, and 1 for a signed field."""
    rows = []
    for field in fields:
        head, _, part = field.name.partition(".")
        member = head
        if part:
            member += f".stride[{part[6:]}]" if part.startswith("stride") else f".{part}"
        rows.append((member, field.width, int(field.signed)))
    return rows
