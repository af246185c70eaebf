"""Random programs for the channel of memory that computes beside a tile: transfers, vectors and products, and loops."""

from __future__ import annotations

import random

import numpy as np

from siliconloom.arch import Chip
from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Semaphore
from siliconloom.arch.pim import PimTile
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.units.pim import burst_of, results_of
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.images import MEMORY_BYTES, PROGRAM_BASE, RESULTS, Bytes, random_image

ROWS = 16
"""Rows of every bank that random programs use."""
ODD = 1 / 512
"""Share of odd patterns among what stands in the channel: sums there are long."""
MOST_BURSTS = 24
"""Bursts that one transfer moves at most, and rounds and segments of a product together."""
LOADED, FREE, MADE, TAKEN = range(4)
"""Semaphores: operands are there; their slot is free; results are there; their slot is free."""


def channel_image(chip: Chip, numbers: np.random.Generator, rows: int = ROWS) -> Bytes:
    """What stands in the first rows of every bank."""
    pim = channel_of(chip)
    return random_image(numbers, DataType.BF16, rows * pim.banks * pim.dram.organization.row_bytes, ODD)


def channel_of(chip: Chip) -> PimTile:
    """The channel that the tile of ``chip`` drives."""
    assert isinstance(chip.tile, NpuTile)
    assert chip.tile.pim is not None
    return chip.tile.pim


class _Channel:
    """Writes a program whose instructions for the channel take operands from one ring, and leave results in another."""

    def __init__(self, chip: Chip, chance: random.Random) -> None:
        self.chip, self.chance, self.pim = chip, chance, channel_of(chip)
        assert isinstance(chip.tile, NpuTile)
        self.tile = tile = chip.tile
        bank = tile.scratchpad.capacity // tile.scratchpad.banks
        self.burst = self.pim.dram.organization.request_bytes
        self.port, self.sums, self.bus = burst_of(tile), results_of(tile), tile.dma.bytes_per_cycle
        unit = max(self.port, self.bus, self.sums)
        # operands in the first bank, results in the second, each in two slots
        self.slot = min(bank // 2, MOST_BURSTS * self.port) // unit * unit
        self.first, self.second = 0, bank
        self.most = max(self.slot // self.port, 1)
        self.found: list[Instruction] = []
        self.loads = self.stores = 0
        self.at, self.results = 0, RESULTS

    def write(self, steps: int) -> Program:
        """So many instructions for the channel, some of them in loops, once its buffer has been filled."""
        words = self.pim.global_buffer // self.burst
        for first in range(0, words, self.most):
            self._vector(first, min(self.most, words - first))
        for _ in range(steps):
            if self.chance.random() < 0.3:
                self.found.append(Instruction(opcode=Opcode.LOOP, m=self.chance.randint(2, 3)))
                # every slot in turn: two uses of each ring in an iteration
                kind = self.chance.choice([self.transfer_in, self.vector, self.product, self.transfer_out])
                for _ in range(2):
                    kind()
                self.found.append(Instruction(opcode=Opcode.NEXT))
            else:
                self.chance.choice([self.transfer_in, self.vector, self.product, self.product, self.transfer_out])()
        self.found.append(Instruction(opcode=Opcode.END))
        names = (("loaded", 0), ("free", 2), ("made", 0), ("taken", 2))
        return Program(tuple(self.found), tuple(Semaphore(name, count) for name, count in names))

    def _load(self, size: int) -> int:
        """Bring operands into the next slot; returns its address."""
        size = -(-size // self.bus) * self.bus
        place = self.first + self.loads % 2 * self.slot
        self.loads += 1
        memory = self.chance.randrange(0, (RESULTS - size) // self.bus) * self.bus
        self.found.append(
            Instruction(
                opcode=Opcode.LOAD,
                m=1,
                n=size,
                pitch=size,
                local_pitch=size,
                memory=Address(base=memory),
                a=Address(base=place),
                wait=1 << FREE,
                post=1 << LOADED,
            )
        )
        return place

    def _store(self, place: int, size: int, rows: int = 1, apart: int = 0) -> None:
        """Bring rows of results from a slot to main memory, where they lie side by side."""
        if self.results + rows * size > PROGRAM_BASE:
            self.results = RESULTS
        self.found.append(
            Instruction(
                opcode=Opcode.STORE,
                m=rows,
                n=size,
                pitch=size,
                local_pitch=apart or size,
                memory=Address(base=self.results),
                a=Address(base=place),
                wait=1 << MADE,
                release=1 << TAKEN,
            )
        )
        self.results += -(-rows * size // self.bus) * self.bus

    def _result_place(self) -> int:
        place = self.second + self.stores % 2 * self.slot
        self.stores += 1
        return place

    def _rows(self) -> tuple[int, int, int, int]:
        """Rows, bytes of one, pitch and address of a transfer that fits a slot."""
        row = self.pim.dram.organization.row_bytes
        wide = self.chance.randint(1, min(self.most, self.pim.row_columns))
        rows = self.chance.randint(1, max(self.most // wide, 1))
        size = wide * self.burst
        unit = 1 << (size - 1).bit_length()
        everything = ROWS * self.pim.banks * row
        pitch = self.chance.choice([unit, row, row * self.pim.banks, 3 * unit])
        if (rows - 1) * pitch + size > everything:
            pitch = unit
        base = self.chance.randrange(0, (everything - (rows - 1) * pitch - size) // unit + 1) * unit
        return rows, size, pitch, base

    def _apart(self, rows: int, width: int) -> int:
        """How far apart rows lie in the scratchpad: side by side, or with room between them."""
        apart = self.chance.choice([width, width, 2 * width, width + max(self.port, self.bus)])
        fits = (rows - 1) * apart + width <= self.slot
        return apart if fits and not width % self.bus else width

    def transfer_in(self) -> None:
        """Rows of the channel are written."""
        rows, size, pitch, base = self._rows()
        width = size * self.port // self.burst
        apart = self._apart(rows, width)
        place = self._load((rows - 1) * apart + width)
        self.found.append(
            Instruction(
                opcode=Opcode.PIM_WRITE,
                m=rows,
                n=size,
                pitch=pitch,
                local_pitch=apart,
                memory=Address(base=base),
                a=Address(base=place),
                wait=1 << LOADED,
                release=1 << FREE,
            )
        )

    def transfer_out(self) -> None:
        """Rows of the channel are read."""
        rows, size, pitch, base = self._rows()
        width, place = size * self.port // self.burst, self._result_place()
        apart = self._apart(rows, width)
        self.found.append(
            Instruction(
                opcode=Opcode.PIM_READ,
                m=rows,
                n=size,
                pitch=pitch,
                local_pitch=apart,
                memory=Address(base=base),
                a=Address(base=place),
                wait=1 << TAKEN,
                post=1 << MADE,
            )
        )
        self._store(place, *((rows * width,) if apart == width else (width, rows, apart)))

    def vector(self) -> None:
        """Bursts of the global buffer are written."""
        words = self.pim.global_buffer // self.burst
        bursts = self.chance.randint(1, min(self.most, words))
        self._vector(self.chance.randint(0, words - bursts), bursts)

    def _vector(self, first: int, bursts: int) -> None:
        place = self._load(bursts * self.port)
        self.found.append(
            Instruction(
                opcode=Opcode.PIM_VECTOR,
                dtype=self.tile.circuit_format,
                m=bursts,
                a=Address(base=place),
                b=Address(base=first),
                wait=1 << LOADED,
                release=1 << FREE,
            )
        )

    def product(self) -> None:
        """Rows of all banks are multiplied by what stands in the global buffer."""
        words, columns = self.pim.global_buffer // self.burst, self.pim.row_columns
        width = self.pim.banks * self.tile.element_bytes
        long = words > columns and self.chance.random() < 0.3
        segments = 1 if long else self.chance.randint(1, min(self.pim.accumulators, columns))
        bursts = self.chance.randint(columns + 1, min(words, 3 * columns)) if long else columns // segments
        bursts = bursts if long else self.chance.randint(1, min(bursts, words))
        chunks = -(-bursts // columns)
        rounds = self.chance.randint(1, max(min(self.slot // (segments * width), ROWS // chunks, 4), 1))
        place = self._result_place()
        self.found.append(
            Instruction(
                opcode=Opcode.PIM,
                dtype=self.tile.circuit_format,
                m=rounds,
                n=segments,
                k=bursts,
                b=Address(base=self.chance.randint(0, words - bursts)),
                c=Address(base=place),
                d=Address(base=self.chance.randint(0, ROWS - rounds * chunks)),
                wait=1 << TAKEN,
                post=1 << MADE,
            )
        )
        self._store(place, rounds * segments * width)


def channel_program(chip: Chip, seed: int, steps: int = 8) -> LoadedProgram:
    """A legal program for the channel of ``chip``, with random content in it and in main memory."""
    chance, numbers = random.Random(f"{chip.name} {seed} channel"), np.random.default_rng(seed)
    assert isinstance(chip.tile, NpuTile)
    program = _Channel(chip, chance).write(steps)
    memory = random_image(numbers, chip.tile.circuit_format, MEMORY_BYTES, ODD)
    return LoadedProgram(program, memory, PROGRAM_BASE, channel_image(chip, numbers))


__all__ = ["channel_image", "channel_of", "channel_program"]
