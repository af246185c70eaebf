"""In-order completion: what an instruction posts, and when."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.rtl.cells.arithmetic import stepped
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.semaphore import SemaphoreCounter
from siliconloom.rtl.library import Circuit, Library, seen
from siliconloom.rtl.npu.geometry import MASK_BITS

ISSUED = data.StructLayout({"barrier": 1, "mask": MASK_BITS})
"""What is kept of an instruction that was issued: whether it is a barrier, and the semaphores its event gives to."""


class Completion(Circuit):
    """One kind of event (operands read, or result complete) of one unit's instructions, in order, one a cycle.

    An event that happens in cycle t reaches the semaphores' counts in t + 1. A barrier's event happens when it is the
    oldest, at the earliest the cycle after it was issued.

    Members
    -------
    issued : In(stream.Signature(ISSUED))
        Instructions and barriers as they are issued; ready while there is room for one more.
    pulse : In(1)
        The oldest instruction that is no barrier has reached its event.
    give : Out(MASK_BITS)
        Semaphores to give to now.
    finished : Out(1)
        An instruction that is no barrier has its event now.
    left : Out(1)
        An instruction or a barrier has its event now.
    empty : Out(1)
        Every event has happened.
    """

    def __init__(self, library: Library, depth: int) -> None:
        self.depth = depth
        ports = {
            "issued": In(stream.Signature(ISSUED)),
            "pulse": In(1),
            "give": Out(MASK_BITS),
            "finished": Out(1),
            "left": Out(1),
            "empty": Out(1),
        }
        super().__init__(library, library.name("completion", depth), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("BARRIER", event=Queue.LATENCY, semaphore=SemaphoreCounter.LATENCY)
        pending = seen(range(self.depth + 1), name="pending")
        pops = Signal()
        queue = self.place(m, self.library.make(Queue, ISSUED.size, self.depth), "events")
        wiring.connect(m, wiring.flipped(self.issued), queue.i)
        oldest, there = data.View(ISSUED, queue.o.payload), queue.o.valid
        m.d.comb += [
            self.finished.eq(there & ~oldest.barrier & (self.pulse | (pending != 0))),
            pops.eq(self.finished | (there & oldest.barrier)),
            queue.o.ready.eq(pops),
            self.left.eq(pops),
            self.give.eq(Mux(pops, oldest.mask, 0)),
            self.empty.eq(~there),
        ]
        m.d.sync += pending.eq(stepped(pending, self.pulse, self.finished))
        return m
