"""Quantities written with their units, as they stand in descriptions.

``256 KiB``, ``900 GB/s``, ``1.2 GHz``, ``500 ns``, ``0.8 pJ``. A decimal prefix is a power of ten and a binary
prefix a power of two, everywhere: GB/s is 10^9 and GiB/s is 2^30 bytes per second. Values are kept as integers of
the base unit (bytes, bytes per second, hertz, picoseconds) so that no time depends on floating-point rounding;
energies are floats in joules.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

_NUMBER = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*?)?\s*$")
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}

BYTES = {p + "B": Decimal(f) for p, f in (_DECIMAL | _BINARY).items()}
BANDWIDTH = {unit + "/s": factor for unit, factor in BYTES.items()}
FREQUENCY = {p + "Hz": Decimal(f) for p, f in _DECIMAL.items() if p != "K"}
DURATION = {"ps": Decimal(1), "ns": Decimal(10**3), "us": Decimal(10**6), "ms": Decimal(10**9), "s": Decimal(10**12)}
ENERGY = {
    "fJ": Decimal("1e-15"),
    "pJ": Decimal("1e-12"),
    "nJ": Decimal("1e-9"),
    "uJ": Decimal("1e-6"),
    "mJ": Decimal("1e-3"),
    "J": Decimal(1),
}


def parse(text: object, units: dict[str, Decimal], example: str) -> Decimal:
    """Value of ``text`` in the base unit of ``units``.

    Raises
    ------
    PydanticCustomError
        When the unit is missing or unknown, or the text is no number.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise PydanticCustomError("quantity", "must be a quantity such as '{example}'", {"example": example})
    found = _NUMBER.match(str(text))
    if found is None:
        raise PydanticCustomError("quantity", "must be a number with a unit, such as '{example}'", {"example": example})
    number, unit = found[1], found[2] or ""
    if unit not in units:
        problem = f"has the unknown unit '{unit}'" if unit else "has no unit"
        known = ", ".join(units)
        raise PydanticCustomError(
            "quantity",
            "{problem}: write for example '{example}' (units: {known})",
            {"problem": problem, "example": example, "known": known},
        )
    return Decimal(number.replace("_", "")) * units[unit]


def _integer(units: dict[str, Decimal], example: str, most: int) -> BeforeValidator:
    def read(text: object) -> int:
        if isinstance(text, Parsed):
            return int(text)
        value = parse(text, units, example)
        if value <= 0:
            raise PydanticCustomError("quantity", "must be greater than zero", {})
        if value > most:
            raise PydanticCustomError("quantity", "is larger than any machine this tool describes", {})
        if not round(value):
            raise PydanticCustomError("quantity", "is less than any machine this tool describes", {})
        return Parsed(round(value))

    return BeforeValidator(read)


class Parsed(int):
    """An integer that was already read from a quantity, so that a validated model can be validated again."""


def _energy(text: object) -> float:
    if isinstance(text, float) and 0 <= text <= 1:
        return text
    value = parse(text, ENERGY, "0.8 pJ")
    if value < 0:
        raise PydanticCustomError("quantity", "must not be negative", {})
    if value > 1:
        raise PydanticCustomError("quantity", "is larger than any machine this tool describes", {})
    return float(value)


def quantity_schema(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example], "description": f"a quantity such as '{example}'"})


Bytes = Annotated[int, _integer(BYTES, "256 KiB", 2**60), quantity_schema("256 KiB")]
"""Bytes."""
Bandwidth = Annotated[int, _integer(BANDWIDTH, "900 GB/s", 10**18), quantity_schema("900 GB/s")]
"""Bytes per second."""
Frequency = Annotated[int, _integer(FREQUENCY, "1.2 GHz", 10**13), quantity_schema("1.2 GHz")]
"""Hertz."""
Duration = Annotated[int, _integer(DURATION, "500 ns", 10**18), quantity_schema("500 ns")]
"""Picoseconds."""
Latency = Annotated[int, _integer(DURATION, "500 ns", 10**12), quantity_schema("500 ns")]
"""Picoseconds, at most a second: a hundred times what a disk takes to turn."""
Energy = Annotated[float, BeforeValidator(_energy), Field(ge=0), quantity_schema("0.8 pJ")]
"""Joules."""


def format_bytes(value: float) -> str:
    """``value`` bytes with a binary prefix and three significant digits: ``1.5 MiB``."""
    return _scaled(value, [(2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")], "B")


def four_digits(number: float) -> str:
    """A number to four digits, or to a whole one where it has more, with commas: ``0.01234``, ``146.4``, ``37,070``."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def format_si(value: float, unit: str) -> str:
    """``value`` with a decimal prefix and three significant digits: ``1.2 GHz``, ``35 us``."""
    scale: list[tuple[float, str]] = [
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1, ""),
        (1e-3, "m"),
        (1e-6, "u"),
        (1e-9, "n"),
        (1e-12, "p"),
        (1e-15, "f"),
    ]
    return _scaled(value, [(f, p + unit) for f, p in scale], unit)


def format_count(value: int, noun: str) -> str:
    """``value`` things in words that fit a line: ``1 event``, ``45.5 million events``."""
    for factor, name in ((10**12, "trillion "), (10**9, "billion "), (10**6, "million ")):
        if value >= factor:
            return f"{value / factor:.3g} {name}{noun}s"
    return f"{value:,} {noun}" + ("" if value == 1 else "s")


def _scaled(value: float, scale: list[tuple[Any, str]], base: str) -> str:
    for factor, name in scale:
        if abs(value) >= factor:
            return f"{value / factor:.4g} {name}"
    return f"{value:.4g} {base}"
