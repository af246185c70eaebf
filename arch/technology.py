"""Energy per operation and per byte, from published tables.

On-chip figures: N. Jouppi et al., "Ten Lessons From Three Generations Shaped Google's TPUv4i", ISCA 2021, table 2
(45 nm and 7 nm; the 45 nm column goes back to M. Horowitz, ISSCC 2014). SRAM figures there are per 64-bit access of
an 8 KiB, 32 KiB and 1 MiB array; between and beyond those sizes the energy is interpolated in the logarithm of the
size. Formats that the table does not have (int4, int16, fp8) are interpolated in the square of the operand width for
multiplication and linearly for addition. The paper itself was not at hand; what others quote of it agrees:

- 45 nm: all of Horowitz's energies (8-bit and 32-bit integers 0.03, 0.1, 0.2, 3.1 pJ; fp16 and fp32 0.4, 0.9, 1.1, 3.7
  pJ; caches of 8 KiB, 32 KiB and 1 MiB 10, 20, 100 pJ; DRAM 1.3 to 2.6 nJ) in a transcription
  (gist.github.com/V0XNIHILI/2b6fa61edd4c06d9ffce5551065124c1), those of 32 bits again in PMC8934428, table 3.
- 7 nm: fp32 multiplication 1.31 pJ and 64 bits of GDDR6 350 to 480 pJ in Sadi et al., "Novel adaptive quantization
  methodology for 8-bit floating-point DNN training", 2024, introduction; fp32 rounded to 0.4 and 1.3 pJ in others.
- Not verified: the 7 nm figures of int8, int32, bf16, fp16 and SRAM, bf16 at 45 nm, DDR4's 1300 pJ at 7 nm.

Main memory: HBM2 3.92 pJ/bit and GDDR5-class 14 pJ/bit from M. O'Connor et al., "Fine-Grained DRAM", MICRO 2017,
table 3; DDR4 1300 pJ and GDDR6 350-480 pJ per 64 bits from the ISCA 2021 table; LPDDR5 and CXL-attached DDR5 are taken
as 4 pJ/bit and DDR4's figure, flash as 60 pJ/bit: round numbers for orientation, to be overridden in the description
(``memory.NAME.energy``).

What a chip takes whether it works or not, all of it an estimate, good to a factor of two:

- **Static**: transistors times the idle power of one. Transistors of arithmetic are its synthesized area at 45 nm
  (M. Horowitz, "Computing's Energy Problem", ISSCC 2014, figure 1.1.9) over a quarter of a NAND2 gate's, 0.798 um2 in
  the Nangate 45 nm library; 24 for a bit of a register; six for a bit of SRAM, its periphery left out. At 45 nm one
  leaks a quarter of that library's NAND2_X1 at 1.1 V and 25 C, 17.4 nW. Both of NAND2_X1 are as in the library (area
  0.798, cell_leakage_power 17.393360 nW; examples/nangate45_typ.lib.gz of OpenSTA at commit d1b2b39). At 7 nm one takes
  what TPUv4i takes idle, 55 W less its HBM's, over 16 billion transistors (the ISCA 2021 paper, table 1); gated clocks,
  PLLs and SerDes of that chip are in it. Not verified: Horowitz's areas, the 55 W and the 16 billion. As a check: TPU
  v4 at rest draws 90 W (cloud.google.com/tpu/docs/v4, "measured min power"); ``tpu-v4`` without CMEM, ICI and host gets
  about a quarter of that.
- **Clock tree**: more than a quarter of the power budget of processors (D. Duarte, N. Vijaykrishnan, M. J. Irwin,
  "Impact of technology scaling in the clock system power", ISVLSI 2002); here a quarter, so a third of what all
  multiply-accumulate units take at full work, for as long as the run lasts: the RTL has no clock gates.
- **Background of main memory**: standby with open rows and refresh, VDD x (IDD3N + (IDD5 - IDD3N) tRFC / tREFI), of the
  data-sheet currents that DRAMsim3's configurations give (HBM2_8Gb_x128, DDR4_8Gb_x8_3200, GDDR5X_8Gb_x32,
  LPDDR3_8Gb_x32_1866), each a die of 1 GiB. Dies of more than 8 Gb take less per byte; LPDDR5 is taken as LPDDR3, GDDR6
  as GDDR5X, HBM3 as HBM2, DDR5 and CXL as DDR4, flash as nothing.
"""

from __future__ import annotations

import math

from msgspec import Struct

from siliconloom.arch.datatype import DataType

PJ = 1e-12


class Technology(Struct, frozen=True):
    """Energies of a process node in joules.

    Parameters
    ----------
    multiply, add
        By format.
    sram
        (bytes of the array, joules per 64-bit access).
    transistor
        Watts of one transistor that does nothing.
    """

    name: str
    multiply: dict[DataType, float]
    add: dict[DataType, float]
    sram: tuple[tuple[int, float], ...]
    transistor: float

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
        DataType.FP8_E4M3: bf16 / 2**power * PJ,
        DataType.FP8_E5M2: bf16 / 2**power * PJ,
        DataType.BF16: bf16 * PJ,
        DataType.FP16: fp16 * PJ,
        DataType.FP32: fp32 * PJ,
    }


def _background(volts: float, standby: float, refreshing: float, trfc: float, trefi: float) -> float:
    """Watts per GiB of a die of 1 GiB, from data-sheet currents in milliamperes."""
    return volts * (standby + (refreshing - standby) * trfc / trefi) / 1000


_HBM_BACKGROUND = _background(1.2, 55, 250, 260, 3900)
_DDR_BACKGROUND = _background(1.2, 52, 250, 560, 12480)
_GDDR_BACKGROUND = _background(1.35, 55, 286, 74, 3800)
_LPDDR_BACKGROUND = _background(1.2, 22, 150, 196, 3645)

TECHNOLOGIES = {
    "45nm": Technology(
        "45nm",
        _formats(0.2, 3.1, 0.8, 1.1, 3.7, 2),
        _formats(0.03, 0.1, 0.3, 0.4, 0.9, 1),
        ((8 << 10, 10 * PJ), (32 << 10, 20 * PJ), (1 << 20, 100 * PJ)),
        17.4e-9 / 4,
    ),
    "7nm": Technology(
        "7nm",
        _formats(0.07, 1.48, 0.21, 0.34, 1.31, 2),
        _formats(0.007, 0.03, 0.11, 0.16, 0.38, 1),
        ((8 << 10, 7.5 * PJ), (32 << 10, 8.5 * PJ), (1 << 20, 14 * PJ)),
        (55 - 8 * _HBM_BACKGROUND) / 16e9,
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

MEMORY_BACKGROUND = {
    "ddr4": _DDR_BACKGROUND,
    "ddr5": _DDR_BACKGROUND,
    "cxl": _DDR_BACKGROUND,
    "gddr6": _GDDR_BACKGROUND,
    "lpddr5": _LPDDR_BACKGROUND,
    "lpddr5x": _LPDDR_BACKGROUND,
    "hbm2": _HBM_BACKGROUND,
    "hbm2e": _HBM_BACKGROUND,
    "hbm3": _HBM_BACKGROUND,
    "hbm3e": _HBM_BACKGROUND,
    "flash": 0.0,
}
"""Watts per GiB of standby and refresh, by kind of memory; that of SRAM is its transistors' (`Technology`)."""

CLOCK_SHARE = 0.25
"""Of a chip's power at full work that its clock takes (Duarte et al., ISVLSI 2002: "more than a quarter")."""

SRAM_BYTE_TRANSISTORS = 6 * 8
REGISTER_TRANSISTORS = 24
NAND2_AREA = 0.798
"""Square micrometres of four transistors at 45 nm."""


def _transistors(int8: float, int32: float, fp16: float, fp32: float, power: int) -> dict[DataType, float]:
    areas = _formats(int8, int32, fp16, fp16, fp32, power)
    return {dtype: area / PJ * 4 / NAND2_AREA for dtype, area in areas.items()}


_MULTIPLIERS = _transistors(282, 3495, 1640, 7700, 2)
_ADDERS = _transistors(36, 137, 1360, 4184, 1)


def mac_transistors(dtype: DataType) -> float:
    """Transistors of a multiplier, and of an adder and a register at the accumulator's width."""
    wide = dtype.accumulator
    return _MULTIPLIERS[dtype] + _ADDERS[wide] + REGISTER_TRANSISTORS * wide.bits


def adder_transistors(dtype: DataType) -> float:
    """Transistors of an adder at the accumulator's width."""
    return _ADDERS[dtype.accumulator]


class BankEnergy(Struct, frozen=True):
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
