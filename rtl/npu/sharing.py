"""Several engines on one memory port: whose a beat or an answer is; and on one read port of the scratchpad.

One engine at a time has the port (`rtl.npu.tile`), but what it asked for is answered while the next one already asks.
Beats and answers come in the order of the bursts, so a queue of the bursts' owners says whose each is. Bursts of two
engines meet only when the port has made the first one wait: what is offered stays, and of two that begin to ask in one
cycle the one with the lower number goes first.
"""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.library import Circuit, Library, Placed
from siliconloom.rtl.npu.bytes import PartSelect
from siliconloom.rtl.npu.geometry import Geometry, log2
from siliconloom.rtl.npu.interfaces import local_read, read_channels, write_channels


class ChannelSharing(Circuit):
    """What both sides share: bursts of several engines become those of one port.

    Members
    -------
    engine_<number>
        The engines' channels.
    port
        The port's.
    """

    def __init__(self, library: Library, geometry: Geometry, engines: int, name: str, channels: Any) -> None:
        if engines < 2:
            raise LoomError(f"engines that share a memory port are at least 2 (got {engines})")
        self.geometry, self.engines = geometry, engines
        ports = {f"engine_{number}": In(channels) for number in range(engines)} | {"port": Out(channels)}
        super().__init__(library, library.name(name, engines), ports, reset=True)

    @property
    def owners(self) -> range:
        """Numbers of the engines."""
        return range(self.engines)

    @property
    def sides(self) -> list[Any]:
        """The engines' channels."""
        return [getattr(self, f"engine_{number}") for number in self.owners]

    def burst_queue(self, m: Module, name: str) -> Placed:
        """A queue of owners, which takes the owner of every burst that leaves; room for all that a memory owes."""
        kind = self.library.make(Queue, Signal(self.owners).shape().width, self.geometry.memory_cycles + 16)
        queue = self.place(m, kind, name)
        m.d.comb += queue.i.payload.eq(self.owner)
        return queue

    def bursts(self, m: Module, *queues: str) -> list[Placed]:
        """Let bursts out, one after the other, each with a place for its owner in all of the queues."""
        self.owner, chosen, kept = (Signal(self.owners, name=name) for name in ("owner", "chosen", "kept"))
        waits = Signal(name="waits")
        for number in reversed(self.owners):
            with m.If(self.sides[number].burst.valid):
                m.d.comb += chosen.eq(number)
        m.d.comb += self.owner.eq(Mux(waits, kept, chosen))
        m.d.sync += kept.eq(self.owner)
        made = [self.burst_queue(m, name) for name in queues]
        asked = Signal(name="asked")
        valids = [side.burst.valid for side in self.sides]
        rooms = [queue.i.ready for queue in made]
        out = self.port.burst
        m.d.comb += [asked.eq(Cat(*valids).any()), out.valid.eq(asked & _all(rooms))]
        m.d.sync += waits.eq(out.valid & ~out.ready)
        for number, side in enumerate(self.sides):
            with m.If(self.owner == number):
                m.d.comb += out.payload.eq(side.burst.payload)
            m.d.comb += side.burst.ready.eq((self.owner == number) & _all(rooms) & out.ready)
        for queue in made:
            others = [other.i.ready for other in made if other is not queue]
            m.d.comb += queue.i.valid.eq(asked & out.ready & _all(others))
        return made

    def back(self, m: Module, name: str, owners: Placed, last: Any) -> None:
        """Give what comes back on a channel to the owner of the oldest burst; ``last`` ends that burst."""
        came = getattr(self.port, name)
        for number, side in enumerate(self.sides):
            mine = owners.o.valid & (owners.o.payload == number)
            its = getattr(side, name)
            m.d.comb += [its.valid.eq(came.valid & mine), its.payload.eq(came.payload)]
            with m.If(mine):
                m.d.comb += came.ready.eq(its.ready)
        m.d.comb += owners.o.ready.eq(came.valid & came.ready & last)


class ReadSharing(ChannelSharing):
    """The read channels of several engines, see `ChannelSharing`."""

    def __init__(self, library: Library, geometry: Geometry, engines: int) -> None:
        super().__init__(library, geometry, engines, "read_sharing", read_channels(geometry.bus))

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        (owners,) = self.bursts(m, "owners")
        self.back(m, "beat", owners, self.port.beat.payload.last)
        return m


class WriteSharing(ChannelSharing):
    """The write channels of several engines, see `ChannelSharing`; beats follow the order of their bursts."""

    def __init__(self, library: Library, geometry: Geometry, engines: int) -> None:
        super().__init__(library, geometry, engines, "write_sharing", write_channels(geometry.bus))

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        senders, owners = self.bursts(m, "senders", "owners")
        out = self.port.beat
        for number, side in enumerate(self.sides):
            mine = senders.o.valid & (senders.o.payload == number)
            m.d.comb += side.beat.ready.eq(mine & out.ready)
            with m.If(mine):
                m.d.comb += [out.valid.eq(side.beat.valid), out.payload.eq(side.beat.payload)]
        m.d.comb += senders.o.ready.eq(out.valid & out.ready & out.payload.last)
        self.back(m, "answer", owners, 1)
        return m


class FetchSharing(Circuit):
    """One read port of the scratchpad with several users, of which at most one asks in a cycle.

    Members
    -------
    user_<number> : In(local_read)
        The users' ports; one that is smaller than the port has its part of what is read.
    port : Out(local_read)
        The scratchpad's, as wide as the widest.
    """

    def __init__(self, library: Library, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        ports = {f"user_{number}": In(local_read(size)) for number, size in enumerate(sizes)}
        ports["port"] = Out(local_read(max(sizes)))
        name = library.name("fetch_sharing", "_".join(map(str, sizes)))
        super().__init__(library, name, ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        users = [getattr(self, f"user_{number}") for number in range(len(self.sizes))]
        m.d.comb += self.port.enable.eq(Cat(*(user.enable for user in users)).any())
        for user in reversed(users):
            with m.If(user.enable):
                m.d.comb += self.port.address.eq(user.address)
        whole = max(self.sizes)
        for number, (user, size) in enumerate(zip(users, self.sizes, strict=True)):
            if size == whole:
                m.d.comb += user.data.eq(self.port.data)
                continue
            part = Signal(log2(whole) - log2(size), name=f"part_{number}")
            m.d.sync += part.eq(user.address[log2(size) : log2(whole)])
            select = self.library.make(PartSelect, 8 * whole, 8 * size)
            m.d.comb += user.data.eq(self.place(m, select, f"select_{number}", word=self.port.data, part=part).o)
        return m


def _all(bits: list[Any]) -> Any:
    """Whether all of these are set; nothing is."""
    return Cat(*bits).all() if bits else Const(1, 1)
