"""LiteX as a target: the tile as a peripheral, a SoC around it in simulation, board targets, firmware and drivers.

Everything lies in ``litex/`` beside the Verilog. The firmware computes the product of ``example/matmul.c``, from the
same template; what the simulator predicts for its run is written into it, so that the SoC in simulation checks cycles.
"""

from __future__ import annotations

from typing import Any

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.isa import SEMAPHORE_LIMIT
from siliconloom.arch.layout import next_power
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.word import SEMAPHORES, WORD_BYTES
from siliconloom.rtl.flows.design import Design
from siliconloom.rtl.integration.product import product_values
from siliconloom.rtl.integration.templates import rendered
from siliconloom.rtl.npu.geometry import MEMORY_BITS, geometry_of
from siliconloom.rtl.npu.registers import COUNTERS, IDENTITY, Cause, unit_names
from siliconloom.rtl.npu.tile import NpuTileCircuit

FOLDER = "litex"
LEAST_RAM = 1 << 20
"""Bytes of main memory in simulation, where the product does not take more."""
RESETS = {"sync": '"i_rst": ResetSignal("sys")', "async_low": '"i_rst_n": ~ResetSignal("sys")'}


def refuse_litex(chip: Chip, design: Design) -> None:
    """Refuse a design that is no peripheral of a SoC; raises `NotSupported` before any Verilog is written."""
    tile = chip.tile
    if design.registers is None or not isinstance(tile, NpuTile):
        raise NotSupported(f"--flow litex for {chip.name}: it has no registers that a CPU could start it by")
    geometry = geometry_of(chip)
    if geometry.ports > 1:
        raise NotSupported(
            f"--flow litex for {chip.name}: its main memory is interleaved over {geometry.ports} ports, and a SoC of "
            f"LiteX has one memory; tile.dma.bytes_per_cycle up to {geometry.port_bytes} has one port"
        )
    if not isinstance(design.top, NpuTileCircuit):
        raise NotSupported(f"--flow litex for {chip.name}: a SoC of LiteX has nothing at the other ends of its links")


def litex_files(chip: Chip, design: Design, predicted_cycles: int | None) -> dict[str, str]:
    """The files of the target, text by name, for a design that `refuse_litex` takes.

    Parameters
    ----------
    chip
        The description, with its memory as it delivers (`siliconloom.sim.dram.memory.effective`).
    design
        Of the whole tile.
    predicted_cycles
        Of the example's product; ``None`` for a tile without example, which has no firmware and no simulation.
    """
    tile = chip.tile
    assert design.registers is not None
    assert isinstance(tile, NpuTile)
    geometry = geometry_of(chip)
    prefix = design.registers.name
    values: dict[str, Any] = {
        "top": design.top.module_name,
        "prefix": prefix,
        "upper": prefix.upper(),
        "digest": chip.digest,
        "data_bits": 8 * geometry.port_bytes,
        "id_bits": geometry.id_bits,
        "register_bytes": 1 << design.registers.address_bits,
        "register_address_bits": design.registers.address_bits,
        "memory_address_bits": MEMORY_BITS,
        "reset_port": RESETS[design.top.library.reset],
        "registers": [(register.name, register.offset) for register in design.registers.registers],
        "unit_names": unit_names(geometry),
        "counters": COUNTERS,
        "causes": [(cause.name, cause.value) for cause in Cause],
        "identity": IDENTITY,
        "word_bytes": WORD_BYTES,
        "program_words": geometry.program_words,
        "semaphore_count": SEMAPHORES,
        "semaphore_limit": SEMAPHORE_LIMIT,
    }
    names = {
        f"{values['top']}_litex.py": "litex_module.py",
        f"{values['top']}_board.py": "litex_board.py",
        f"{prefix}_driver.py": "litex_driver.py",
        f"{prefix}_soc.h": "litex_soc.h",
        f"{prefix}_soc.c": "litex_soc.c",
    }
    if predicted_cycles is not None:
        product = product_values(chip, design)
        values |= product | {
            "attributes": f'__attribute__((section(".operands"), aligned({product["page"]}))) ',
            "predicted_cycles": predicted_cycles,
            "ram_bytes": max(LEAST_RAM, next_power(4 * product["memory_bytes"])),
        }
        names |= {
            f"{values['top']}_sim.py": "litex_sim.py",
            f"{values['top']}_sim.cpp": "litex_sim.cpp",
            "firmware/main.c": "litex_main.c",
            "firmware/linker.ld": "litex_linker.ld",
            "firmware/string.h": "litex_string.h",
        }
    return {f"{FOLDER}/{name}": rendered(template, values) for name, template in names.items()}
