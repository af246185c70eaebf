"""Which keys of an npu tile's description would make it fit an FPGA, from what its modules were found to take.

Every module's logic grows with a product of sizes of the tile (`module_sizes`): a lane with nothing but the number of
lanes, the scratchpad with the bytes of a line of all banks. So what a smaller tile takes is what this one does, module
by module, times the quotient of these products. Block RAMs follow exactly from the words of the memories
(`block_rams`). Halving goes on, the key or pair of keys first that takes most off what is too much, until all fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from msgspec import Struct
from pydantic import ValidationError

from siliconloom.arch import Chip, LoomError
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.word import stored_bits, stored_grain
from siliconloom.rtl.npu.geometry import Geometry, geometry_of, log2
from siliconloom.rtl.synthesis.area import ModuleArea
from siliconloom.rtl.synthesis.devices import Device

KEYS = (
    "tile.scratchpad.banks",
    "tile.scratchpad.capacity",
    "tile.sequencer.program_words",
    "tile.accumulator.capacity",
    "tile.array.rows",
    "tile.array.cols",
    "tile.array.load_rows",
    "tile.vector.lanes",
    "tile.dma.bytes_per_cycle",
)
"""What may be halved, where two are as good the first."""
FIELDS = {"LUT": "luts", "FF": "registers", "MULT18X18D": "multipliers"}
"""Resources that grow with a module's size, as a `ModuleArea` calls them."""
FIXED_LANES, FIXED_BYTES = 8, 48
"""What of the vector unit beside its lanes, and of the paths to and from the buses, does not grow: as so much more."""
STEPS = 24
"""Halvings, at most."""
ROOM = 0.9
"""Share of the LUTs that a smaller tile may take: placing needs some, and the rule of scaling is no synthesis."""
WIDTHS = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))
"""Bits and words of a DP16KD; nine bits hold a byte that is written alone."""
PART = 64
"""Bits of a part of a memory that is written in shorter granules (`rtl.cells.sram`)."""


class Smaller(Struct, frozen=True):
    """Keys with the values that would make a tile fit, and what it would take then.

    Parameters
    ----------
    changes
        Keys and values, as ``--set`` takes them; none where no halving is enough.
    used
        By resource, as estimated.
    """

    changes: tuple[tuple[str, str], ...]
    used: Mapping[str, int]

    def line(self) -> str:
        """The advice in one line."""
        if not self.changes:
            return "no halving of the tile's sizes makes it fit"
        words = " ".join(f"--set {key}={value}" for key, value in self.changes)
        needs = ", ".join(f"{count:,} {name}" for name, count in self.used.items())
        return f"it would fit with {words} (estimated by scaling: {needs})"


def smaller(chip: Chip, device: Device, used: Mapping[str, int], modules: Sequence[ModuleArea]) -> Smaller:
    """What of an npu tile to halve so that it fits an FPGA.

    Parameters
    ----------
    chip
        The description that was synthesized.
    device
        The FPGA.
    used
        What it took, by resource.
    modules
        What its modules took.
    """
    rooms = {name: count * (ROOM if name == "LUT" else 1) for name, count in device.available.items()}
    now, changed, taken = chip, dict[str, int](), dict(used)

    def too_much(needs: Mapping[str, float]) -> float:
        return sum(max(0.0, needs[name] / room - 1) for name, room in rooms.items())

    for _ in range(STEPS):
        left = too_much(taken)
        if not left:
            return Smaller(tuple((key, _written(key, value)) for key, value in changed.items()), taken)
        best: tuple[float, Chip, dict[str, int], dict[str, int]] | None = None
        for keys in (*((key,) for key in KEYS), *combinations(KEYS, 2)):
            tried = halved(now, keys)
            if tried is None:
                continue
            needs = estimate(chip, tried[0], used, modules)
            gain = (left - too_much(needs)) / len(keys)
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, *tried, needs
        if best is None:
            break
        _, now, more, taken = best
        changed |= more
    return Smaller((), taken)


def _written(key: str, value: int) -> str:
    """A value as ``--set`` takes it: capacities have a unit."""
    if not key.endswith("capacity"):
        return str(value)
    return f"{value // 1024}KiB" if value % 1024 == 0 else f"{value}B"


def estimate(chip: Chip, other: Chip, used: Mapping[str, int], modules: Sequence[ModuleArea]) -> dict[str, int]:
    """What another tile takes by resource, where this one, whose modules are known, takes ``used``."""
    before, after = geometry_of(chip), geometry_of(other)
    old, new = module_sizes(before), module_sizes(after)
    found = {name: float(used[name]) for name in FIELDS}
    for path, own in _apart(modules, old):
        for name, count in own.items():
            found[name] += count * (new[path] / old[path] - 1)
    rams = used["DP16KD"] + large_memories(after) - large_memories(before)
    return {name: round(count) for name, count in found.items()} | {"DP16KD": rams}


def module_sizes(geometry: Geometry) -> dict[str, int]:
    """What the logic of a module, without the modules in it that have a size of their own, is proportional to.

    A module of which a part does not grow has that part in its size, as so many lanes or bytes more.
    """
    array, bus = geometry.array, geometry.bus
    return {
        "scratchpad": geometry.banks * geometry.line,
        "vector": FIXED_LANES + geometry.lanes,
        "vector/lane": geometry.lanes,
        "matmul": FIXED_BYTES + geometry.line,
        "matmul/array": array.rows * array.cols,
        "accumulator": array.cols,
        "load": FIXED_BYTES + bus,
        "load/rotator": bus * (1 + log2(bus)),
        "store": FIXED_BYTES + bus,
        "store/rotator": bus * (1 + log2(bus)),
    }


def _apart(modules: Sequence[ModuleArea], sizes: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """The modules that have a size of their own, and what each takes without those in it that have one, too."""
    for each in modules:
        path = _name(each)
        if path in sizes:
            inside = [other for other in modules if _name(other) in sizes and other.path[:-1] == each.path]
            yield (
                path,
                {
                    resource: getattr(each, field) - sum(getattr(other, field) for other in inside)
                    for resource, field in FIELDS.items()
                },
            )


def _name(module: ModuleArea) -> str:
    """Where a module lies, without the sizes that names of shared circuits end in."""
    return re.sub(r"(_\d+)+$", "", "/".join(module.path))


def large_memories(geometry: Geometry) -> int:
    """Block RAMs of scratchpad, program memory and both copies of the accumulator."""
    grain = stored_grain(geometry.port_bytes)
    cols = geometry.array.cols
    banks = geometry.banks * block_rams(8 * geometry.line, geometry.bank_bytes // geometry.line, 8)
    program = block_rams(stored_bits(geometry.port_bytes), geometry.program_words, grain)
    sums = 2 * block_rams(32 * cols, geometry.accumulator_lines, 32 * cols >> geometry.part_bits)
    return banks + program + sums


def block_rams(width: int, depth: int, granularity: int) -> int:
    """DP16KD that a memory of so many bits and words takes, which is written in granules of so many bits."""
    part = PART if granularity < PART and width % PART == 0 and PART % granularity == 0 else max(granularity, 1)
    if granularity >= PART:
        part = granularity
    elif part != PART:
        part = width
    least = []
    for bits, words in WIDTHS:
        if granularity == part:
            units = -(-part // bits)
        elif bits % 9 == 0 and granularity % 8 == 0:
            units = -(-part // 8 // (bits // 9))
        else:
            units = part // granularity * -(-granularity // bits)
        least.append(units * -(-depth // words))
    return width // part * min(least)


def halved(chip: Chip, keys: Sequence[str]) -> tuple[Chip, dict[str, int]] | None:
    """The chip with some keys halved, and their values; nothing where one is odd, or there is no such circuit."""
    assert isinstance(chip.tile, NpuTile)
    place: Any
    described: Any
    document = chip.tile.model_dump(exclude_unset=True)  # what is a default may be refused where it is written
    changed = {}
    for key in keys:
        _, *rooms, last = key.split(".")
        place, described = document, chip.tile
        for room in rooms:
            place, described = place.setdefault(room, {}), getattr(described, room)
        value: int = getattr(described, last)
        if value % 2:
            return None
        place[last] = changed[key] = value // 2
    for memory in ("scratchpad", "accumulator"):
        document[memory]["capacity"] = f"{document[memory]['capacity']} B"
    try:
        made = chip.model_copy(update={"tile": NpuTile.model_validate(document)})
        geometry_of(made)
    except (ValidationError, LoomError):
        return None
    return made, changed


__all__ = ["Smaller", "block_rams", "estimate", "halved", "large_memories", "module_sizes", "smaller"]
