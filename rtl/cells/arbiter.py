"""Who of several comes first: whoever asked first, and of those who began to ask in one cycle the lowest."""

from __future__ import annotations

from amaranth import Cat, Module, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.library import Circuit, Library


class FirstComeArbiter(Circuit):
    """Keeps the order in which users have asked for something that one of them has at a time.

    Parameters
    ----------
    users
        How many; at least 2.

    Members
    -------
    asks : In(users)
        A bit per user: it asks. One that was put off may take its wish back.
    taken : In(users)
        It has what it asked for in this cycle, and asks anew from the next one on.
    rivals : In(users)
        Of whom one is to be found: those who ask, or what is known of them sooner.
    first : Out(users)
        No other rival has asked for longer, nor as long with a lower number. Depends on no request of its own.
    """

    def __init__(self, library: Library, users: int) -> None:
        if users < 2:
            raise LoomError(f"the users of an arbiter are at least 2 (got {users})")
        self.users = users
        ports = {"asks": In(users), "taken": In(users), "rivals": In(users), "first": Out(users)}
        super().__init__(library, library.name("arbiter", users), ports, reset=True)
        # Members, because the proof states its invariant over them: the higher of two has asked for longer.
        self.older = {(high, low): Signal(name=f"older_{high}_{low}") for high in range(users) for low in range(high)}

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        put_off = Signal(self.users)
        m.d.comb += put_off.eq(self.asks & ~self.taken)
        for (high, low), older in self.older.items():
            m.d.sync += older.eq(put_off[high] & (~put_off[low] | older))
        for user in range(self.users):
            lower = [self.rivals[other] & ~self.older[user, other] for other in range(user)]
            higher = [self.rivals[other] & self.older[other, user] for other in range(user + 1, self.users)]
            m.d.comb += self.first[user].eq(~Cat(*lower, *higher).any())
        return m
