"""PROGRAMS.md of a folder with a whole tile: all that one needs to write programs for it, with this tile's numbers.

What is registered (opcodes, units, vector functions), the layout of words and the layouts of operands are read from
where everybody else reads them; the text around them stands in ``manual.md.j2``.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from siliconloom.arch import timing
from siliconloom.arch.description import INTERVAL_ONE, Chip
from siliconloom.arch.faults import cause_table
from siliconloom.arch.isa import SEMAPHORE_LIMIT, Instruction, Opcode
from siliconloom.arch.layout import INDEX_BYTES, MOST_SPLIT, summing_order, sums_room
from siliconloom.arch.listing import disassemble
from siliconloom.arch.opcodes import Format, built_units, opcode_table
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import COLUMN_LIMIT, ROW_LIMIT, function_table
from siliconloom.arch.word import DTYPES, LAYOUTS, LEVELS, SEMAPHORES, WORD_BYTES
from siliconloom.rtl.npu.circuits import engines, readers, sharers, sums_readers, sums_writers, unit_circuits, writers
from siliconloom.rtl.npu.example import example_run
from siliconloom.rtl.npu.example_tiling import ExampleTile, default_shapes, memory_bytes, why_none
from siliconloom.rtl.npu.geometry import LONGEST_BURST, PAGE, Geometry
from siliconloom.rtl.npu.places import product_places, vector_places
from siliconloom.rtl.npu.ports import prefixes
from siliconloom.rtl.npu.registers import register_map

FILE = "PROGRAMS.md"

FIELDS = {
    "opcode": "what it does",
    "unit": "the queue it goes to: the code of its opcode's unit; of a barrier that of any unit with a queue",
    "dtype": "number format of a computation",
    "function": "of the vector unit",
    "wait": "semaphores that are waited for, a bit each",
    "release": "semaphores that are posted when the operands have been read",
    "post": "semaphores that are posted when the results are complete",
    "first_wait": "semaphores that are waited for in the first round of all levels in `first`",
    "last_post": "semaphores that are posted, as by `post`, in the last round of all levels in `last`",
    "first": "loop levels, a bit each, 0 the outermost",
    "last": "loop levels",
    "accumulate": "a matmul always adds to its sums",
    "overwrite": "loop levels in whose first rounds a matmul puts its sums in the place of what was there",
    "rescale": "what a matmul adds to is first divided, row by row, see below",
    "weights": "of a matmul: how B lies, 0 as A's elements, 1 in int4, 2 int8, 3 bf16, 4 fp16, 5 to 7 MX's, 8 int16",
    "group": "of packed weights: the power of two that the rows of a group are",
    "narrow": "what takes half of a line or less lies in lines of the next power of two, see below",
    "split": "lines of the last panel's sums are a whole one over 2 to this power, see below",
    "m": "size; of a loop, rounds",
    "n": "size",
    "k": "size, or a number of its own of some vector functions, see there",
    "pitch": "bytes from row to row in main memory",
    "local_pitch": "bytes from row to row in the scratchpad",
}
"""What each field that is no part of an address means."""
PARTS = {
    "base": "where it begins, bytes",
    "stride": "bytes that a round of this level adds, with its sign",
    "slot": "bytes that are added when the parity is one",
    "parity": "loop levels whose indices' lowest bits are joined by exclusive or",
    "odd": "turns the parity",
}
"""What each part of an address means."""
LOCAL = "local address"
ADDRESSES = {"memory": "main memory", "a": LOCAL, "b": LOCAL, "c": LOCAL, "d": LOCAL}


def word_tables() -> dict[str, list[tuple[str, str, str]]]:
    """Bits, field and meaning of the fields of a word, by format; of others than the header those that follow it."""
    made = {}
    header = len(LAYOUTS[Format.HEADER])
    for kind, fields in LAYOUTS.items():
        rows, bit = [], 0
        for number, field in enumerate(fields):
            last = bit + field.width - 1
            bits = str(bit) if last == bit else f"{last}:{bit}"
            if kind is Format.HEADER or number >= header:
                rows.append((bits, field.name, _meaning(field.name) + (", signed" if field.signed else "")))
            bit += field.width
        made[kind.name.lower()] = rows
    return made


def _meaning(name: str) -> str:
    head, _, part = name.partition(".")
    if not part:
        return FIELDS[head]
    where = ADDRESSES[head]
    return f"{where}: {PARTS['stride' if part.startswith('stride') else part]}"


def _multiples(tile: NpuTile) -> dict[str, int]:
    """Bytes of which a matmul's addresses are multiples; what is not named begins anywhere."""
    product = Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1)
    return dict(product.opcode.spec.multiples(product, tile))


def bank_users(geometry: Geometry) -> list[tuple[str, str, str, int]]:
    """Ports of the scratchpad: name, side, units that use it, and bytes of an access."""
    users = {name: ", ".join(unit for unit, _ in sharing) for name, sharing in sharers(geometry).items()}
    reading = [(name, "read", users[name], size) for name, size in readers(geometry).items()]
    owners = {name: unit for unit, circuit in unit_circuits(geometry).items() for name in circuit.writes}
    return reading + [(name, "write", owners[name], size) for name, size in writers(geometry).items()]


def manual(prefix: str, chip: Chip, geometry: Geometry) -> dict[str, str]:
    """The document by its name."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    environment = Environment(
        loader=PackageLoader("siliconloom.rtl.npu", "."),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    offsets = {register.name: register.offset for register in register_map(geometry).registers}
    text = environment.get_template("manual.md.j2").render(
        chip=chip,
        tile=tile,
        g=geometry,
        prefix=prefix,
        upper=prefix.upper(),
        words=word_tables(),
        word_bytes=WORD_BYTES,
        levels=LEVELS,
        semaphores=SEMAPHORES,
        semaphore_limit=SEMAPHORE_LIMIT,
        formats=[(DTYPES.index(each), each.value) for each in (geometry.dtype,)],
        opcodes=opcode_table(),
        functions=function_table(geometry.dtype),
        format=geometry.dtype.value,
        sums_format=geometry.dtype.accumulator.value,
        summing=summing_order(geometry.array),
        causes=cause_table(),
        units=[unit.spec.name for unit in built_units(geometry)],
        engines=list(engines()),
        queues=geometry.queue_depth,
        ports=bank_users(geometry),
        sums_readers=list(sums_readers(geometry)),
        sums_writers=list(sums_writers(geometry)),
        sums_room=sums_room(tile),
        split_limit=MOST_SPLIT,
        places=product_places(tile),
        multiples=", ".join(f"`{name}` of {unit}" for name, unit in sorted(_multiples(tile).items())),
        vector=vector_places(tile),
        row_limit=ROW_LIMIT,
        powers="b" if tile.array.dataflow == "input_stationary" else "a",
        column_limit=COLUMN_LIMIT,
        index_bytes=INDEX_BYTES,
        offsets={name: f"0x{offset:03x}" for name, offset in offsets.items()},
        prefixes=prefixes(geometry),
        page=PAGE,
        burst=LONGEST_BURST,
        interval=f"{geometry.interval / INTERVAL_ONE:.6g}",
        timing=timing,
        why_none=why_none(tile),
        listing=_listing(chip, geometry),
    )
    return {FILE: text}


def _listing(chip: Chip, geometry: Geometry) -> str:
    """The program of the example, as text; nothing where there is none."""
    assert isinstance(chip.tile, NpuTile)
    if why_none(chip.tile):
        return ""
    tile = ExampleTile(chip.tile)
    run = example_run(chip, geometry.bus, *default_shapes(tile), memory_bytes(tile, geometry.bus))
    assert run is not None, "the memory is sized for this shape"
    return disassemble(run.program)


__all__ = ["FILE", "bank_users", "manual", "word_tables"]
