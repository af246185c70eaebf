"""Arbiters: which of several requests goes first."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.library import Circuit, Library


def lowest(request: Value) -> Value:
    """``request`` with only its lowest set bit left."""
    return (request & -request)[: len(request)]


class PriorityArbiter(Circuit):
    """Grants the request of the lowest index; combinational.

    Parameters
    ----------
    ports
        Requesters; at least 1.

    Members
    -------
    request : In(ports)
        Who wants.
    grant : Out(ports)
        Who gets: one of the requesters, or none when nobody wants.
    """

    def __init__(self, library: Library, ports: int) -> None:
        self.ports = checked(ports)
        members = {"request": In(ports), "grant": Out(ports)}
        super().__init__(library, library.name("priority", ports), members)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        # Every circuit has a clock; Verilator does not ask for the use of what is called unused.
        unused = Signal(attrs={"keep": 1})
        m.d.comb += [self.grant.eq(lowest(self.request)), unused.eq(self.clk)]
        return m


class RoundRobinArbiter(Circuit):
    """Grants the requesters in turn.

    Once a port was served, every other port that keeps requesting is served before it is again; so a port that keeps
    requesting waits for at most ``ports - 1`` others. Until ``advance`` the turn stays, but a new request that comes
    before the granted one in the present turn takes the grant over.

    Parameters
    ----------
    ports
        Requesters; at least 1.

    Members
    -------
    request : In(ports)
        Who wants.
    advance : In(1)
        The granted port is served in this cycle; without a request it has no effect.
    grant : Out(ports)
        Who gets: one of the requesters, or none when nobody wants.
    """

    def __init__(self, library: Library, ports: int) -> None:
        self.ports = checked(ports)
        members = {"request": In(ports), "advance": In(1), "grant": Out(ports)}
        super().__init__(library, library.name("roundrobin", ports), members, reset=True)
        # A member of the object rather than of `elaborate`: the proofs state their invariants over it.
        self.later = Signal(ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        preferred = Signal(self.ports)
        m.d.comb += [
            preferred.eq(self.request & self.later),
            self.grant.eq(Mux(preferred.any(), lowest(preferred), lowest(self.request))),
        ]
        with m.If(self.advance & self.request.any()):
            # The ports above the granted one.
            m.d.sync += self.later.eq(Cat(0, *[self.grant[:i].any() for i in range(1, self.ports)]))
        return m


def checked(ports: int) -> int:
    """``ports``, if an arbiter can have as many."""
    if ports < 1:
        raise LoomError(f"the ports of an arbiter are at least 1 (got {ports})")
    return ports
