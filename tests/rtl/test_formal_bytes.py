"""Circuits that are written in Verilog do what an Amaranth description of them does, for all inputs."""

import importlib.util

import pytest
from amaranth import Cat, Mux
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.formal import Monitor, check, prove
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.bytes import ByteGate, ByteMask, ByteShift, PartSelect, Rotator, WindowSelect

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)


def bytes_of(word):
    return [word[at : at + 8] for at in range(0, len(word), 8)]


def mask(c, bus):
    lanes = range(bus)
    return Cat((lane >= c.first) & (lane < c.first + c.count) for lane in lanes), c.first + c.count <= bus


def rotated(c, bus):
    number = (bus - 1).bit_length()
    return Cat(c.word.word_select((lane - c.left)[:number], 8) if bus > 1 else c.word for lane in range(bus)), 1


def window(c, width, size, step):
    return (c.word >> (c.first * step))[:size], c.first <= (width - size) // step


def part(c, width, size):
    return c.word.word_select(c.part, size), c.part < width // size


def shifted(c, bus):
    return Cat(Mux(lane + c.first < bus, (c.word >> (8 * (lane + c.first)))[:8], 0) for lane in range(bus)), 1


def gated(c, bus):
    return Cat(Mux(lane, byte, 0) for lane, byte in zip(c.lanes, bytes_of(c.word), strict=True)), 1


MEANT = {ByteMask: mask, Rotator: rotated, WindowSelect: window, PartSelect: part, ByteShift: shifted, ByteGate: gated}


class Equivalence(Monitor):
    """The Verilog's output is the description's, for all inputs that are allowed."""

    def __init__(self, circuit, meant, parameters):
        self.circuit, self.meant, self.parameters = circuit, meant, parameters
        ports = {name: In(port.width) for name, port in circuit.ports().items() if port.is_input and name != "clk"}
        properties = dict.fromkeys(("assume_allowed", "assert_equal", "cover_something"), Out(1))
        super().__init__(circuit.library, f"{circuit.module_name}_equivalence", ports | properties, reset=True)
        self.inputs = list(ports)

    def elaborate(self, platform):
        m = self.module()
        placed = self.place(m, self.circuit, "verilog", **{name: getattr(self, name) for name in self.inputs})
        expected, allowed = self.meant(self, *self.parameters)
        m.d.comb += [
            self.assume_allowed.eq(allowed),
            self.assert_equal.eq(placed.o == expected),
            self.cover_something.eq(placed.o != 0),
        ]
        return m


def outcome(kind, parameters, meant=None, how=prove):
    circuit = Library("bytes").make(kind, *parameters)
    return how(Equivalence(circuit, meant or MEANT[kind], parameters), depth=1)


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        *[(kind, (bus,)) for kind in (ByteMask, Rotator, ByteShift, ByteGate) for bus in (2, 8, 16)],
        *[(kind, (1,)) for kind in (ByteMask, ByteGate)],
        *[(kind, (bus,)) for kind in (ByteMask, ByteShift, ByteGate) for bus in (3, 12)],
        *[(WindowSelect, sizes) for sizes in ((64, 16, 16), (64, 24, 8), (128, 40, 8))],
        *[(PartSelect, sizes) for sizes in ((64, 8), (64, 32), (96, 8))],
    ],
    ids=str,
)
def test_what_is_written_is_what_is_described(kind, parameters):
    assert outcome(kind, parameters).proved


@pytest.mark.parametrize("kind", MEANT, ids=str)
def test_another_description_is_found(kind):
    parameters = {WindowSelect: (64, 24, 8), PartSelect: (64, 8)}.get(kind, (8,))

    def wrong(c, *sizes):
        expected, allowed = MEANT[kind](c, *sizes)
        return expected ^ (1 << (len(expected) - 1)), allowed

    assert outcome(kind, parameters, wrong, check).counterexample is not None
