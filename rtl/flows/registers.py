"""A register map as one Python table, and what is generated from it: JSON, Markdown, a C header."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from msgspec import Struct

Access = Literal["rw", "ro", "wo", "w1c"]
"""Software may read and write; only read; only write; read, and clear a bit by writing one to it."""

ACCESS_MEANINGS: dict[Access, str] = {
    "rw": "read and write",
    "ro": "read only",
    "wo": "write only, reads as zero",
    "w1c": "read; writing one clears",
}

SCHEMA = "siliconloom.registers/1"


class Field(Struct, frozen=True, kw_only=True):
    """Bits of a register that mean one thing.

    Parameters
    ----------
    name
        A C identifier.
    low
        Lowest bit.
    width
        Bits.
    access
        What software may do.
    reset
        Value after reset.
    description
        One line.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    name: str
    low: int
    width: int = 1
    access: Access = "rw"
    reset: int = 0
    description: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.low < 0 or self.width < 1:
            raise ValueError(
                f"{self.name}: low must not be negative and width be at least 1 (got {self.low}, {self.width})"
            )
        if not 0 <= self.reset <= self.ones:
            raise ValueError(f"{self.name}: reset must fit in {self.width} bits (got {self.reset})")
        if self.access not in get_args(Access):
            raise ValueError(f"{self.name}: access must be one of {', '.join(get_args(Access))} (got {self.access!r})")

    @property
    def ones(self) -> int:
        """The largest value."""
        return (1 << self.width) - 1

    @property
    def bits(self) -> str:
        """The bits as data sheets write them, such as ``7:4``."""
        return str(self.low) if self.width == 1 else f"{self.low + self.width - 1}:{self.low}"


class Register(Struct, frozen=True, kw_only=True):
    """A word of the register map.

    Parameters
    ----------
    name
        A C identifier.
    offset
        Bytes from the base address.
    description
        One line.
    fields
        In any order, without overlap; bits that no field claims are reserved and read as zero.

    Raises
    ------
    ValueError
        When fields overlap or share a name.
    """

    name: str
    offset: int
    description: str = ""
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not self.fields:
            raise ValueError(f"{self.name}: must have at least one field")
        _check_unique(self.name, [f.name for f in self.fields])
        taken = 0
        for each in self.fields:
            mask = each.ones << each.low
            if taken & mask:
                raise ValueError(f"{self.name}.{each.name}: bits {each.bits} overlap another field")
            taken |= mask

    @property
    def reset(self) -> int:
        """Value of the word after reset."""
        return sum(f.reset << f.low for f in self.fields)

    @property
    def access(self) -> str:
        """Access of the fields, joined by a slash when they differ."""
        return "/".join(sorted({f.access for f in self.fields}))

    @property
    def width(self) -> int:
        """Bits up to the highest field."""
        return max(f.low + f.width for f in self.fields)


@dataclass(frozen=True, kw_only=True)
class RegisterMap:
    """The registers behind one slave port: the only place where they are written down.

    Parameters
    ----------
    name
        A C identifier; the prefix of everything generated.
    data_bits
        Bits of a word of the bus: 32 or 64.
    address_bits
        Bits of a byte address on the port.
    description
        One line.
    registers
        In any order.

    Raises
    ------
    ValueError
        When registers overlap, are misaligned, do not fit the bus, or share a name.
    """

    name: str
    registers: tuple[Register, ...]
    data_bits: int = 32
    address_bits: int = 12
    description: str = ""
    by_name: dict[str, Register] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.data_bits not in (32, 64):
            raise ValueError(f"{self.name}: data_bits must be 32 or 64 (got {self.data_bits})")
        _check_unique(self.name, [r.name for r in self.registers])
        step = self.data_bits // 8
        offsets: dict[int, str] = {}
        for each in self.registers:
            if each.offset % step or not 0 <= each.offset < 1 << self.address_bits:
                limit = 1 << self.address_bits
                raise ValueError(f"{each.name}: offset must be a multiple of {step} below {limit} (got {each.offset})")
            if each.width > self.data_bits:
                raise ValueError(f"{each.name}: has a field above bit {self.data_bits - 1}")
            if each.offset in offsets:
                raise ValueError(f"{each.name}: offset {each.offset:#x} is that of {offsets[each.offset]}")
            offsets[each.offset] = each.name
        object.__setattr__(self, "registers", tuple(sorted(self.registers, key=lambda r: r.offset)))
        object.__setattr__(self, "by_name", {r.name: r for r in self.registers})


def registers_json(table: RegisterMap, digest: str) -> str:
    """The map as JSON; ``digest`` is that of the description that the hardware was generated from."""
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "description_digest": digest,
        "name": table.name,
        "description": table.description,
        "data_bits": table.data_bits,
        "address_bits": table.address_bits,
        "registers": [
            {
                "name": r.name,
                "offset": r.offset,
                "access": r.access,
                "reset": r.reset,
                "description": r.description,
                "fields": [
                    {
                        "name": f.name,
                        "low": f.low,
                        "width": f.width,
                        "access": f.access,
                        "reset": f.reset,
                        "description": f.description,
                    }
                    for f in sorted(r.fields, key=lambda f: f.low)
                ],
            }
            for r in table.registers
        ],
    }
    return json.dumps(data, indent=2) + "\n"


def registers_markdown(table: RegisterMap, digest: str) -> str:
    """The map as a page: an overview and a table per register."""
    digits = -(-table.data_bits // 4)
    lines = [
        f"# Registers of {table.name}",
        "",
        *([table.description, ""] if table.description else []),
        f"Words of {table.data_bits} bits; offsets in bytes. Bits that no field claims read as zero and must be "
        f"written as zero. Description digest `{digest}`.",
        "",
        "| offset | name | access | reset | meaning |",
        "|---|---|---|---|---|",
    ]
    for r in table.registers:
        lines.append(
            f"| `{r.offset:#05x}` | [{r.name}](#{r.name.lower()}) | {r.access} | `0x{r.reset:0{digits}x}` "
            f"| {_cell(r.description)} |"
        )
    for r in table.registers:
        lines += ["", f"## {r.name}", "", "| bits | field | access | reset | meaning |", "|---|---|---|---|---|"]
        for f in sorted(r.fields, key=lambda f: -f.low):
            lines.append(f"| {f.bits} | {f.name} | {f.access} | `{f.reset:#x}` | {_cell(f.description)} |")
    used = {f.access for r in table.registers for f in r.fields}
    lines += ["", "Access: " + "; ".join(f"*{a}* {ACCESS_MEANINGS[a]}" for a in get_args(Access) if a in used) + "."]
    return "\n".join(lines) + "\n"


def registers_header(table: RegisterMap, digest: str) -> str:
    """The map as a C99 header: offset and reset value of each register, shift and mask of each field."""
    prefix = table.name.upper()
    suffix = "u" if table.data_bits == 32 else "ull"
    lines = [
        f"/* Registers of {table.name}. Generated by siliconloom; do not edit.",
        f" * Description digest: {digest}",
        " */",
        f"#ifndef {prefix}_REGISTERS_H",
        f"#define {prefix}_REGISTERS_H",
        "",
        "#include <stdint.h>",
        "",
        f'#define {prefix}_DESCRIPTION_DIGEST "{digest}"',
        f"#define {prefix}_ADDRESS_BITS {table.address_bits}",
    ]
    for r in table.registers:
        name = f"{prefix}_{r.name.upper()}"
        lines += ["", f"/* {_comment(r.name, r.access, r.description)} */"]
        lines += [f"#define {name}_OFFSET 0x{r.offset:x}u", f"#define {name}_RESET 0x{r.reset:x}{suffix}"]
        for f in sorted(r.fields, key=lambda f: f.low):
            full = f"{name}_{f.name.upper()}"
            lines += [
                f"/* {_comment(f.bits, f.access, f.description)} */",
                f"#define {full}_SHIFT {f.low}",
                f"#define {full}_MASK 0x{f.ones << f.low:x}{suffix}",
            ]
    kind, lower = f"uint{table.data_bits}_t", table.name.lower()
    lines += [
        "",
        f"static inline {kind} {lower}_read(uintptr_t base, uint32_t offset)",
        "{",
        f"    return *(volatile const {kind} *)(base + offset);",
        "}",
        "",
        f"static inline void {lower}_write(uintptr_t base, uint32_t offset, {kind} value)",
        "{",
        f"    *(volatile {kind} *)(base + offset) = value;",
        "}",
        "",
        f"#endif /* {prefix}_REGISTERS_H */",
    ]
    return "\n".join(lines) + "\n"


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"a name must be a C identifier that begins with a letter (got {name!r})")


def _check_unique(owner: str, names: list[str]) -> None:
    upper = [name.upper() for name in names]
    for name in names:
        if upper.count(name.upper()) > 1:
            raise ValueError(f"{owner}: the name {name} is used twice (names differ by more than their case)")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _comment(*parts: str) -> str:
    return ", ".join(part for part in parts if part).replace("*/", "* /")
