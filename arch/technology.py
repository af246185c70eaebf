"""Energy per operation and per byte, from published tables.

On-chip figures: N. Jouppi et al., "Ten Lessons From Three Generations Shaped Google's TPUv4i", ISCA 2021, table 2
(45 nm and 7 nm; the 45 nm column goes back to M. Horowitz, ISSCC 2014). SRAM figures there are per 64-bit access of
an 8 KiB, 32 KiB and 1 MiB array; between and beyond those sizes the energy is interpolated in the logarithm of the
size. Formats that the table does not have (int4, int16, fp8) are interpolated in the square of the operand width for
multiplication and linearly for addition.

Main memory: HBM2 3.92 pJ/bit and GDDR5-class 14 pJ/bit from M. O'Connor et al., "Fine-Grained DRAM", MICRO 2017,
table 3; DDR4 1300 pJ and GDDR6 350-480 pJ per 64 bits from the ISCA 2021 table; LPDDR5 and CXL-attached DDR5 are taken
as 4 pJ/bit and DDR4's figure, flash as 60 pJ/bit: round numbers for orientation, to be overridden in the description
(``memory.NAME.energy``). Leakage and clock tree are not modelled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from siliconloom.arch.datatype import DataType

PJ = 1e-12


@dataclass(frozen=True)
class Technology:
    """Energies of a process node in joules.

    Parameters
    ----------
    multiply, add
        By format.
    sram
        (bytes of the array, joules per 64-bit access).
    """

    name: str
    multiply: dict[DataType, float]
    add: dict[DataType, float]
    sram: tuple[tuple[int, float], ...]

    def mac(self, dtype: DataType) -> float:
        """Joules of one multiply-accumulate: a product of operands, a sum at the accumulator's width."""
        return self.multiply[dtype] + self.add[dtype.accumulator]

    def sram_byte(self, capacity: int) -> float:
        """Joules per byte read from or written to an on-chip memory of ``capacity`` bytes."""
        sizes = [math.log2(size) for size, _ in self.sram]
        wanted, energies = math.log2(capacity), [energy for _, energy in self.sram]
        index = min(max(sum(s <= wanted for s in sizes) - 1, 0), len(sizes) - 2)
        slope = (energies[index + 1] - energies[index]) / (sizes[index + 1] - sizes[index])
        return max(energies[0] / 2, energies[index] + slope * (wanted - sizes[index])) / 8


def _formats(int8: float, int32: float, bf16: float, fp16: float, fp32: float, power: int) -> dict[DataType, float]:
    return {
        DataType.INT4: int8 / 2**power * PJ,
        DataType.INT8: int8 * PJ,
        DataType.INT16: int8 * 2**power * PJ,
        DataType.INT32: int32 * PJ,
        DataType.FP8: bf16 / 2**power * PJ,
        DataType.BF16: bf16 * PJ,
        DataType.FP16: fp16 * PJ,
        DataType.FP32: fp32 * PJ,
    }


TECHNOLOGIES = {
    "45nm": Technology(
        "45nm",
        _formats(0.2, 3.1, 0.8, 1.1, 3.7, 2),
        _formats(0.03, 0.1, 0.3, 0.4, 0.9, 1),
        ((8 << 10, 10 * PJ), (32 << 10, 20 * PJ), (1 << 20, 100 * PJ)),
    ),
    "7nm": Technology(
        "7nm",
        _formats(0.07, 1.48, 0.21, 0.34, 1.31, 2),
        _formats(0.007, 0.03, 0.11, 0.16, 0.38, 1),
        ((8 << 10, 7.5 * PJ), (32 << 10, 8.5 * PJ), (1 << 20, 14 * PJ)),
    ),
}

MEMORY_BYTE = {
    "sram": 14 * PJ / 8,
    "ddr4": 1300 * PJ / 8,
    "ddr5": 1300 * PJ / 8,
    "cxl": 1300 * PJ / 8,
    "gddr6": 415 * PJ / 8,
    "lpddr5": 32 * PJ,
    "lpddr5x": 32 * PJ,
    "hbm2": 3.92 * 8 * PJ,
    "hbm2e": 3.92 * 8 * PJ,
    "hbm3": 3.92 * 8 * PJ,
    "hbm3e": 3.92 * 8 * PJ,
    "flash": 480 * PJ,
}
"""Joules per byte moved, by kind of memory."""


@dataclass(frozen=True)
class BankEnergy:
    """Joules per byte inside a DRAM.

    Parameters
    ----------
    row
        Of a row that is opened.
    array
        Between sense amplifiers and the bank's edge (pre-GSA), where lanes sit.
    pins
        From there to the other die (post-GSA and I/O).
    """

    row: float
    array: float
    pins: float


_HBM2 = BankEnergy(909 / 1024 * PJ, 1.51 * 8 * PJ, (1.17 + 0.80) * 8 * PJ)
BANK_ENERGY = {"HBM2": _HBM2, "HBM2E": _HBM2}
"""By standard: O'Connor et al., MICRO 2017, table 3 (909 pJ for a row of 1 KiB; HBM2E is taken as HBM2)."""
