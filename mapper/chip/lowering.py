"""What every lowering shares: the program under construction, the addresses, the synchronisation between tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.isa import Address, Unit
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.word import LEVELS
from siliconloom.mapper.chip.builder import ProgramBuilder
from siliconloom.mapper.chip.layout import Layout, Rings
from siliconloom.mapper.chip.memory import MemoryMap
from siliconloom.mapper.chip.operands import Found
from siliconloom.mapper.chip.rings import NOWHERE, Loop, Ring, affine, affine_more
from siliconloom.mapper.chip.tasks import Task
from siliconloom.workloads import Graph, Operator, Vector


class Stored(Struct, frozen=True):
    """A result in memory: where it begins, all its bytes, and bytes from row to row."""

    address: int
    size: int
    row: int


class Context(Struct):
    """State of the lowering of one block."""

    builder: ProgramBuilder
    chip: Chip
    tile: NpuTile
    layout: Layout
    rings: Rings
    memory: MemoryMap
    layer: Loop
    stored: int
    """Semaphore that says that the previous task's results are in memory."""
    graph: Graph
    updated: Mapping[str, str]
    """See `operands.updated`."""
    outputs: dict[str, Stored] = field(default_factory=dict)
    """Each operator's result."""
    apart: dict[str, str] = field(default_factory=dict)
    """Why operators do not read what the graph says they read."""
    written: int = 1
    """Tiles of attention that may be written out for the sake of a long pipeline."""
    anew: bool = False
    """The buffers are divided anew before this task: nothing of it begins before all that is before it is done."""

    def operand(self, name: str, role: str, found: Found | None, size: int, row: int) -> int:
        """Address of an operand of the operator ``name``: of an earlier result, or of fresh memory.

        Parameters
        ----------
        role
            Of the object, where it is fresh memory.
        found
            What the graph says; ``None`` where it says nothing, as an entry of a list.
        size, row
            Bytes of the operand, and from row to row, as it is read.
        """
        if found is None:
            return self.memory.take(name, role, size)
        if isinstance(found, str):
            self.apart.setdefault(name, found)
            return self._large_enough(name, size) or self.memory.take(name, role, size)
        stored, size_of = self.outputs.get(found.maker), self.graph.dataflow[found.maker].precision.size
        if stored is None:
            return self.memory.take(name, role, size)
        if stored.row * found.step != row:
            self.apart.setdefault(name, "no layout for heads that do not begin where transfers may")
        return stored.address + found.row * stored.row + size_of(found.column)

    def _large_enough(self, name: str, size: int) -> int | None:
        """An earlier result that stands for an operand that has no layout."""
        known = name in self.graph.dataflow  # what the mapper adds by itself is not
        for maker in self.graph.dataflow.predecessors(name) if known else ():
            if maker in self.outputs and self.outputs[maker].size >= size:
                return self.outputs[maker].address
        return None

    def parameters(self, operator: Operator) -> int:
        """Address of the operator's parameters, those of every repetition one after the other."""
        return self.memory.take(operator.name, "parameters", operator.weight_bytes, operator.repeat)

    def output_of(self, task: Task, size: int, row: int) -> int:
        """Address of the task's result, a row every ``row`` bytes, under the names of all operators it computes."""
        last = task.fused[-1] if task.fused else task.operator
        before = self.outputs.get(self.updated.get(last.name, ""))
        if before is not None and before.row == row:
            made = before
        else:
            size = max(size, last.output_bytes)
            made = Stored(self.memory.take(task.operator.name, "result", size), size, row)
        for operator in (task.operator, *task.fused):
            self.outputs[operator.name] = made
        return made.address


STILL = Loop(None, 1)
"""A loop of one iteration."""


class Segment(Struct, frozen=True):
    """Equal tiles along one dimension: ``count`` tiles of ``size`` from element ``start`` on."""

    start: int
    count: int
    size: int
    first: bool
    last: bool


@lru_cache(maxsize=1 << 14)
def segments(total: int, size: int, lead: int = 0) -> tuple[Segment, ...]:
    """A tile of ``lead`` elements, if any; whole tiles; then the rest, if any."""
    full, rest = divmod(total - lead, size)
    parts = [(0, 1, lead)] if lead else []
    parts += [(lead, full, size)] if full else []
    parts += [(lead + full * size, 1, rest)] if rest else []
    return tuple(
        Segment(start, count, width, index == 0, index == len(parts) - 1)
        for index, (start, count, width) in enumerate(parts)
    )


def ordered(total: int, size: int, sequence: tuple[int, ...]) -> tuple[Segment, ...]:
    """Tiles of ``size``, the last one of the rest, each by itself, in the order in which their numbers are given."""
    return tuple(
        Segment(number * size, 1, min(size, total - number * size), index == 0, index == len(sequence) - 1)
        for index, number in enumerate(sequence)
    )


class Walk(Struct, frozen=True):
    """An open loop over a segment, with what the code inside needs to know about it."""

    segment: Segment
    loop: Loop

    @property
    def size(self) -> int:
        return self.segment.size

    @property
    def start(self) -> int:
        return self.segment.start

    @property
    def step(self) -> int:
        """Elements from one round of the loop to the next."""
        return self.segment.size

    @property
    def first(self) -> int | None:
        """Loop mask under which this is the dimension's first tile; ``None`` when it never is."""
        return self.loop.mask if self.segment.first else None

    @property
    def last(self) -> int | None:
        """Loop mask under which this is the dimension's last tile; ``None`` when it never is."""
        return self.loop.mask if self.segment.last else None


class PartOfWalk(Walk, frozen=True):
    """One of several tiles in each round of a loop."""

    whole: Walk

    @property
    def step(self) -> int:
        return self.whole.size


def parts_of(whole: Walk, size: int) -> list[PartOfWalk]:
    """The tiles of ``size`` in each round of a loop, the last one perhaps shorter."""
    starts, segment = range(0, whole.size, size), whole.segment
    return [
        PartOfWalk(
            Segment(
                whole.start + start,
                segment.count,
                min(size, whole.size - start),
                segment.first and start == 0,
                segment.last and start == starts[-1],
            ),
            whole.loop,
            whole,
        )
        for start in starts
    ]


class Nest:
    """The loops that one task has open, and its two meetings with its neighbours.

    The first load that reads an earlier task's results waits, once, until those are in memory; the last store of the
    task posts, once, that its own are. Where programs of operators are launched, that of a task waits in place of
    the first load, and all loads wait for it.
    """

    def __init__(self, context: Context, task: Task) -> None:
        self.context, self.walks = context, list[Walk]()
        launched = context.tile.sequencer.launch_cycles > 0
        self.waits, self.posts = task.depends and not launched, task.depends or launched
        if launched:
            functions = [each.function for each in (task.operator, *task.fused) if isinstance(each, Vector)]
            kernels = max([1, *(context.tile.vector.cost_of(each).kernels for each in functions)])
            context.builder.barrier(Unit.LOAD, wait=1 << context.stored, launches=kernels)

    def walk(self, total: int, size: int, lead: int = 0, sequence: tuple[int, ...] = ()) -> Iterator[Walk]:
        """Open a loop over each segment of a dimension in turn; ``sequence`` are its tiles in another order."""
        for segment in ordered(total, size, sequence) if sequence else segments(total, size, lead):
            with self.context.builder.loop(segment.count) as loop:
                self.walks.append(Walk(segment, loop))
                yield self.walks[-1]
                self.walks.pop()

    def within(self, walk: Walk, body: Callable[[Walk], None]) -> None:
        """Run ``body`` with ``walk`` counted among the open loops."""
        self.walks.append(walk)
        body(walk)
        self.walks.pop()

    def load(
        self,
        ring: Ring,
        rows: int,
        row_bytes: int,
        pitch: int,
        memory: Address,
        *,
        depends: bool = True,
        opens: bool = True,
        closes: bool = True,
        offset: int = 0,
        within: Address = NOWHERE,
        local_pitch: int | None = None,
        fills: bool = False,
        compression: float | None = None,
        turns: Loop | None = None,
    ) -> None:
        """Load into ``ring``; the first load that ``depends`` on earlier results waits for them."""
        semaphores, levels = 0, 0
        if depends and self.waits:
            semaphores, levels = when(joined(w.first for w in self.walks), 1 << self.context.stored)
            self.waits = False
        self.context.builder.load(
            ring,
            rows,
            row_bytes,
            pitch,
            memory,
            first_wait=semaphores,
            first=levels,
            opens=opens,
            closes=closes,
            offset=offset,
            within=within,
            local_pitch=local_pitch,
            fills=fills,
            compression=compression,
            turns=turns,
        )

    def load_in_chunks(
        self, ring: Ring, size: int, chunk: int, memory: Address, *, opens: bool, closes: bool, offset: int
    ) -> None:
        """Load ``size`` bytes that adjoin, of parameters, in transfers of a ``chunk`` each: others may come between.

        They are turns of a loop, or written out where all levels of loops are taken.
        """
        if self.context.builder.depth == LEVELS:
            for done in range(0, size, chunk):
                part, ends = min(chunk, size - done), done + chunk >= size
                self.load(
                    ring,
                    1,
                    part,
                    part,
                    replace(memory, base=memory.base + done),
                    depends=False,
                    opens=opens and not done,
                    closes=closes and ends,
                    offset=offset + done,
                )
            return
        whole, rest = divmod(size, chunk)
        with self.context.builder.loop(whole) as turns:
            self.load(
                ring,
                1,
                chunk,
                chunk,
                affine_more(memory, (turns, chunk)),
                depends=False,
                opens=opens,
                closes=closes and not rest,
                offset=offset,
                within=affine(0, (turns, chunk)),
                turns=turns,
            )
        if rest:
            done = whole * chunk
            last = replace(memory, base=memory.base + done)
            self.load(ring, 1, rest, rest, last, depends=False, opens=False, closes=closes, offset=offset + done)
        elif closes:
            ring.written()

    def store(
        self,
        ring: Ring,
        rows: int,
        row_bytes: int,
        pitch: int,
        memory: Address,
        *,
        final: bool = True,
        opens: bool = True,
        closes: bool = True,
        offset: int = 0,
        local_pitch: int | None = None,
        fills: bool = False,
    ) -> None:
        """Store from ``ring``; the task's last store tells the next task (not when ``final`` is false)."""
        semaphores, levels = 0, 0
        if self.posts and final and closes:
            semaphores, levels = when(joined(w.last for w in self.walks), 1 << self.context.stored)
        self.context.builder.store(
            ring,
            rows,
            row_bytes,
            pitch,
            memory,
            last_post=semaphores,
            last=levels,
            opens=opens,
            closes=closes,
            offset=offset,
            local_pitch=local_pitch,
            fills=fills,
        )


def joined(masks: Iterable[int | None]) -> int | None:
    """Mask under which all hold; ``None`` when one of them never does."""
    total = 0
    for mask in masks:
        if mask is None:
            return None
        total |= mask
    return total


def when(mask: int | None, semaphores: int) -> tuple[int, int]:
    """Semaphores and level mask for a predicated wait or post; nothing at all when the mask is ``None``."""
    return (0, 0) if mask is None else (semaphores, mask)
