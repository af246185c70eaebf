"""The link's ends proved: no buffer overflows, whatever comes over the wire; no packet leaves without credits.

None of it rests on the CRC being a good one: the proofs put a plain fold in its place, or the solver would spend its
time on exclusive ors.
"""

import importlib.util

import pytest
from amaranth import Const, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch import CheckFailed
from siliconloom.arch.link import COUNT_BITS, SEQUENCE_BITS, LinkProtocol
from siliconloom.rtl.formal import Monitor, prove
from siliconloom.rtl.library import Library
from siliconloom.rtl.link.receiver import LinkReceiver
from siliconloom.rtl.link.sender import LinkSender

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)
SMALL = LinkProtocol(wire_cycles=0, packet_flits=2, outstanding=2, credits=2, timeout=8)


@pytest.fixture(autouse=True)
def plain_crc(monkeypatch):
    def fold(register, data):
        return (Const(register, 32) if isinstance(register, int) else register) ^ data[:32]

    for end in ("sender", "receiver"):
        monkeypatch.setattr(f"siliconloom.rtl.link.{end}.next_crc", fold)


class Contract(Monitor):
    def __init__(self, circuit, properties):
        self.circuit = circuit
        self.free = {n: p for n, p in circuit.ports().items() if p.is_input and n not in ("clk", "rst")}
        ports = {name: In(port.width) for name, port in self.free.items()}
        ports |= dict.fromkeys(properties.split(), Out(1))
        super().__init__(circuit.library, f"{circuit.module_name}_contract", ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        self.watch(m, self.circuit, "circuit")
        for name, port in self.free.items():
            m.d.comb += port.value.eq(getattr(self, name))
        self.state(m, self.circuit)
        return m


class ReceiverContract(Contract):
    """Flits that are held, or may yet be taken, fit the buffer."""

    def __init__(self, circuit):
        super().__init__(circuit, "assert_fits assert_offers invariant_under_way cover_full cover_taken")

    def state(self, m, c):
        held, hoped, credits = Signal(COUNT_BITS), Signal(COUNT_BITS), c.protocol.credits
        m.d.comb += [
            held.eq(c.taken - c.freed),
            hoped.eq(c.taken + c.count - c.freed),
            self.assert_fits.eq(held <= credits),
            self.assert_offers.eq(c.m_axis.valid == (held != 0)),
            self.invariant_under_way.eq(~(c.inside & c.mine & ~c.spoilt) | (hoped <= credits)),
            self.cover_full.eq(c.inside & c.mine & ~c.spoilt & (hoped == credits)),
            self.cover_taken.eq(c.m_axis.valid & c.m_axis.ready),
        ]


class SenderContract(Contract):
    """Only what is closed is sent, only what fits is begun, and slots are never filled twice.

    Relied on: the receiver awaits no packet that was not closed.
    """

    def __init__(self, circuit):
        super().__init__(
            circuit, "assume_awaited assert_credits assert_closed assert_slots cover_start cover_full cover_back"
        )

    def state(self, m, c):
        kept, shown, claimed = (Signal(SEQUENCE_BITS, name=n) for n in ("kept", "shown", "claimed"))
        m.d.comb += [
            kept.eq(c.closed - c.acked),
            shown.eq(c.next - c.acked),
            claimed.eq(c.control_word[:SEQUENCE_BITS] - c.acked),
            self.assume_awaited.eq(~c.heard | (claimed <= kept)),
            self.assert_credits.eq(~c.start | ((c.limit - c.freed)[:COUNT_BITS] <= c.protocol.credits)),
            self.assert_closed.eq(shown <= kept),
            self.assert_slots.eq(kept <= c.protocol.outstanding),
            self.cover_start.eq(c.start),
            self.cover_full.eq(~c.s_axis.ready),
            self.cover_back.eq((c.retries == 1) & (kept != 0)),
        ]


@pytest.mark.slow(seconds=1)
def test_a_receive_buffer_never_overflows():
    receiver = Library("proof").make(LinkReceiver, SMALL)
    assert prove(ReceiverContract(receiver), depth=7, induction=1).induction == 1


@pytest.mark.slow(seconds=1)
def test_a_sender_keeps_to_its_credits_and_slots():
    sender = Library("proof").make(LinkSender, SMALL)
    assert prove(SenderContract(sender), depth=12, induction=1).induction == 1


class Tighter(ReceiverContract):
    """Asks for less room than the circuit has: as a circuit that believes in more than there is."""

    def state(self, m, c):
        c.protocol, own = SMALL, c.protocol
        super().state(m, c)
        c.protocol = own


def test_a_receiver_that_believes_in_more_room_is_found():
    receiver = Library("proof").make(LinkReceiver, SMALL.model_copy(update={"credits": 4}))
    with pytest.raises(CheckFailed, match=r"invariant_under_way|assert_fits"):
        prove(Tighter(receiver), depth=7, induction=1)
