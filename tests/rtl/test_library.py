"""Circuits inside circuits: the names of ports, what a placed circuit is to its parent, and what is refused."""

import re
import shutil
import subprocess

import pytest
from amaranth import Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, Signature, connect, flipped

from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.library import Circuit, Library

pytestmark = pytest.mark.usefixtures("quiet_circuits")

BEAT = data.StructLayout({"data": 4, "last": 1})
PORT = Signature({"enable": Out(1), "address": Out(3), "data": In(8)})


class Filter(Circuit):
    """A stream with registers in between, a port of a memory, and two single signals."""

    axi_streams = ("m_axis",)

    def __init__(self, library, *, forgets=()):
        self.forgets = forgets
        ports = {
            "i": In(stream.Signature(BEAT)),
            "m_axis": Out(stream.Signature(BEAT)),
            "memory": Out(PORT),
            "go": In(1),
            "level": Out(2),
        }
        super().__init__(library, library.name("filter"), ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        queue = self.place(m, self.library.make(Queue, BEAT.size, 2), "queue")
        if "i" not in self.forgets:
            connect(m, flipped(self.i), queue.i)
        if "o" not in self.forgets:
            connect(m, queue.o, flipped(self.m_axis))
        m.d.comb += [
            self.level.eq(queue.level),
            self.memory.enable.eq(self.go),
            self.memory.address.eq(self.i.payload.data),
        ]
        return m


def parent(place):
    class Parent(Circuit):
        def __init__(self, library):
            super().__init__(library, library.name("parent"), {"go": In(1), "level": Out(2)}, reset=True)

        def elaborate(self, platform):
            m = self.module()
            m.d.comb += self.level.eq(place(self, m).level)
            return m

    return Parent(Library("made"))


def test_a_member_of_a_member_and_a_field_of_a_payload_are_ports_of_their_own():
    ports = Filter(Library("made")).ports()
    assert {name: (port.is_input, port.width) for name, port in ports.items()} == {
        "clk": (True, 1),
        "rst": (True, 1),
        "i_valid": (True, 1),
        "i_ready": (False, 1),
        "i_data": (True, 4),
        "i_last": (True, 1),
        "m_axis_tvalid": (False, 1),
        "m_axis_tready": (True, 1),
        "m_axis_tdata": (False, 4),
        "m_axis_tlast": (False, 1),
        "memory_enable": (False, 1),
        "memory_address": (False, 3),
        "memory_data": (True, 8),
        "go": (True, 1),
        "level": (False, 2),
    }


@pytest.mark.slow(seconds=1)
def test_the_verilog_has_these_ports_and_the_parent_names_them():
    library = Library("made")
    circuit = library.make(Filter)
    texts = library.verilog(circuit)
    head = re.search(r"module made_filter\((.*?)\);", texts["made_filter"])[1]
    assert set(head.split(", ")) == set(circuit.ports())
    placed = re.search(r"made_queue_5x2 queue \((.*?)\);", texts["made_filter"], re.S)[1]
    assert set(re.findall(r"\.(\w+)\(", placed)) == set(library.make(Queue, 5, 2).ports())


class Deaf(Circuit):
    """Two queues whose outputs nobody looks at, one of which is full: what is read of them is nothing."""

    def __init__(self, library):
        super().__init__(library, library.name("deaf"), {"go": In(1), "level": Out(2)}, reset=True)

    def elaborate(self, platform):
        m = self.module()
        for name in ("heard", "unheard"):
            queue = self.place(m, self.library.make(Queue, 4, 2), name)
            m.d.comb += [queue.i.valid.eq(self.go), queue.i.payload.eq(5), queue.o.ready.eq(self.go)]
            if name == "heard":
                m.d.comb += self.level.eq(queue.level)
        return m


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("kind", [Filter, Deaf])
def test_circuits_that_are_written_apart_are_those_that_are_written_together(kind, monkeypatch):
    def texts(letters):
        monkeypatch.setattr("siliconloom.rtl.library.BATCH", letters)
        library, told = Library("made"), []
        made = library.verilog(library.make(kind), told.append)
        assert told == [1, 2]
        return made

    assert texts(1) == texts(1_000_000)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({}, r"missing are \['go'\], unknown are \[\]"),
        ({"go": 1, "come": 1}, r"missing are \[\], unknown are \['come'\]"),
        ({"go": 1, "i": 1}, r"missing are \[\], unknown are \['i'\]"),
    ],
)
def test_single_inputs_are_given_and_nothing_else(given, rule):
    with pytest.raises(TypeError, match=f"made_filter has other inputs: {rule}"):
        parent(lambda self, m: self.place(m, self.library.make(Filter), "inner", **given)).rtlil()


@pytest.mark.parametrize(("end", "undriven"), [("i", "queue_i_payload, queue_i_valid"), ("o", "queue_o_ready")])
def test_a_stream_that_nobody_connects_is_refused(end, undriven):
    with pytest.raises(TypeError, match=f"made_filter: nothing drives {undriven}$"):
        Filter(Library("made"), forgets=(end,)).rtlil()


def test_a_member_that_is_not_there_is_named():
    def place(self, m):
        inner = self.place(m, self.library.make(Queue, 4, 2), "inner")
        m.d.comb += inner.i.valid.eq(Signal())
        return inner.output

    with pytest.raises(AttributeError, match="no member output, only i, o, level"):
        parent(place).rtlil()


class Chooser(Circuit):
    """A choice of many, whose ports have the names that Yosys gives a function's arguments."""

    def __init__(self, library, width):
        super().__init__(
            library, library.name("chooser"), {"s": In(3), "a": In(width), "b": In(width), "o": Out(width)}
        )

    def elaborate(self, platform):
        m = self.module()
        with m.Switch(self.s):
            for value in range(6):
                with m.Case(value):
                    m.d.comb += self.o.eq([self.a, self.b, self.a & self.b, self.a | self.b, 1, self.a ^ self.b][value])
            with m.Default():
                m.d.comb += self.o.eq(~self.a)
        return m


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("width", [1, 5])
def test_a_choice_of_many_is_a_block_without_a_function(width, tmp_path):
    if not shutil.which("iverilog"):
        pytest.skip("needs iverilog")
    library = Library("t")
    text = library.verilog(Chooser(library, width))["t_chooser"]
    assert "function" not in text
    assert "always @*" in text
    (tmp_path / "t.v").write_text(text)
    bench = (
        f"module tb; reg [{2 * width + 2}:0] at; wire [{width - 1}:0] o;\n"
        f"t_chooser dut(.clk(1'b0), .s(at[2:0]), .a(at[{width + 2}:3]), .b(at[{2 * width + 2}:{width + 3}]), .o(o));\n"
        f'initial for (at = 0; 1; at = at + 1) begin #1 $display("%0d", o); if (&at) $finish; end\nendmodule\n'
    )
    (tmp_path / "tb.v").write_text(bench)
    subprocess.run(["iverilog", "-g2012", "-o", "tb", "t.v", "tb.v"], cwd=tmp_path, check=True)
    told = subprocess.run(["vvp", "-n", "tb"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.split()
    mask, wanted = (1 << width) - 1, []
    for at in range(1 << 2 * width + 3):
        s, a, b = at & 7, at >> 3 & mask, at >> 3 + width
        wanted.append([a, b, a & b, a | b, 1, a ^ b, a ^ mask, a ^ mask][s])
    assert [int(each) for each in told if each.isdigit()] == wanted
