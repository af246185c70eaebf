"""In-order completion: what an instruction posts, and when."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.semaphore import SemaphoreCounter
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.geometry import MASK_BITS


class Completion(Circuit):
    """One kind of event (operands read, or result complete) of one unit's instructions, in order, one a cycle.

    An event that happens in cycle t reaches the semaphores' counts in t + 1. A barrier's event happens when it is the
    oldest, at the earliest the cycle after it was issued.

    Members
    -------
    issue, barrier, mask : In
        An instruction was issued, and the semaphores that its event gives to.
    ready : Out(1)
        There is room for one more.
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
            "issue": In(1),
            "barrier": In(1),
            "mask": In(MASK_BITS),
            "ready": Out(1),
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
        pending = Signal(range(self.depth + 1))
        front_barrier, pops = Signal(), Signal()
        queue = self.place(
            m,
            self.library.make(Queue, MASK_BITS + 1, self.depth),
            "events",
            i_valid=self.issue,
            i_payload=(self.mask << 1) | self.barrier,
            o_ready=pops,
        )
        m.d.comb += [
            front_barrier.eq(queue["o_payload"][0]),
            self.finished.eq(queue["o_valid"] & ~front_barrier & (self.pulse | (pending != 0))),
            pops.eq(self.finished | (queue["o_valid"] & front_barrier)),
            self.left.eq(pops),
            self.give.eq(Mux(pops, queue["o_payload"][1:], 0)),
            self.empty.eq(~queue["o_valid"]),
            self.ready.eq(queue["i_ready"]),
        ]
        m.d.sync += pending.eq(pending + self.pulse - self.finished)
        return m
