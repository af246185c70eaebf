"""Emits each distinct circuit once and places it with ``Instance``, so that Verilog stays small for any array."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, get_args

from amaranth import ClockDomain, Instance, Module, Shape, Signal, Value
from amaranth.back import rtlil
from amaranth.hdl._ast import SignalSet
from amaranth.hdl._ir import Fragment, PortDirection
from amaranth.lib import data, wiring
from msgspec import Struct

from siliconloom.arch.budget import require_library
from siliconloom.rtl.writing import VerilogWriter

ResetStyle = Literal["sync", "async_low"]
"""How registers are reset: by ``rst``, synchronous and active high, or by ``rst_n``, asynchronous and active low."""

RESET_PORTS: dict[ResetStyle, str] = {"sync": "rst", "async_low": "rst_n"}
"""Name of the reset port of every circuit that has one."""
BATCH = 1_000_000
"""Letters of RTLIL with which Yosys is started, while other circuits are converted: large tiles have six times that."""
MANY_OBJECTS = 2_000_000
"""New objects that are kept before the garbage among them is looked for."""


class CircuitPort(Struct, frozen=True):
    """A port of a circuit as its Verilog module has it.

    Parameters
    ----------
    is_input
        The module reads it.
    width
        Bits.
    value
        The signal, or the field of a stream's payload, that it carries.
    """

    is_input: bool
    width: int
    value: Any


class Placed(wiring.PureInterface):  # type: ignore[misc] # Amaranth has no type hints
    """A circuit that was put into another one: its members as that other one sees them.

    A stream of it is joined to another one by ``wiring.connect(m, queue.o, unit.instruction)``. ``flat`` has what its
    ports are connected to by their names in Verilog, clock and reset among them.
    """

    flat: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no member {name}, only {', '.join(self.signature.members)}")


class Circuit(wiring.Component):  # type: ignore[misc] # Amaranth has no type hints
    """A component with explicit clock and reset ports that becomes one Verilog module.

    Members may be signatures: streams of `amaranth.lib.stream`, ports of a memory. In Verilog a member of a member is
    ``<outer>_<inner>``, and a field of a stream's payload is a port of its own, ``<stream>_<field>``.

    Parameters
    ----------
    library
        Where children are registered.
    name
        Verilog module name; equal names must mean equal circuits.
    ports
        Members beside clock and reset.
    reset
        Has a reset, in the style of the library; a circuit without one holds only data that a valid bit qualifies.

    Members
    -------
    clk : In(1)
        Clock of every register.
    rst : In(1)
        Synchronous reset, active high; only with ``reset``, in a library whose style is ``sync``.
    rst_n : In(1)
        Asynchronous reset, active low; only with ``reset``, in a library whose style is ``async_low``. May fall at any
        time, must rise away from the clock's edges.
    """

    _MustUse__silence = True  # one that is made for its ports alone, or is written in Verilog, is no mistake

    axi_streams: tuple[str, ...] = ()
    """Streams whose ports have the names of AXI4-Stream: ``<stream>_tvalid``, ``<stream>_tdata``."""

    def __init__(self, library: Library, name: str, ports: dict[str, Any], *, reset: bool = False) -> None:
        self.library, self.module_name, self.has_reset = library, name, reset
        clocks = {"clk": wiring.In(1)} | ({library.reset_port: wiring.In(1)} if reset else {})
        super().__init__({**clocks, **ports})
        self._awaited: list[Signal] = []
        self._split: dict[tuple[Any, ...], dict[str, Signal]] = {}
        for path, member, value in self.signature.flatten(self):
            if _is_split(path, member):
                parts = {field: Signal(each.width, name=self.port_name(path, field)) for field, each in member.shape}
                self._split[path] = parts
            else:
                Value.cast(value).name = self.port_name(path)

    def port_name(self, path: tuple[Any, ...], field: str = "") -> str:
        """Name in Verilog of the member at ``path``, or of a field of the payload that stands there."""
        parts = (*path[:-1], field) if field else path
        stream = parts[0] in self.axi_streams
        return f"{parts[0]}_t{parts[1]}" if stream else "_".join(parts)

    def ports(self) -> dict[str, CircuitPort]:
        """The ports of the module by name, clock and reset among them; of a stream the payload comes last."""
        order = {name: number for number, name in enumerate(self.signature.members)}
        members = sorted(self.signature.flatten(self), key=lambda each: (order[each[0][0]], each[0][-1] == "payload"))
        found = {}
        for path, member, value in members:
            is_input = member.flow == wiring.In
            for field, signal in self._split.get(path, {}).items():
                found[self.port_name(path, field)] = CircuitPort(is_input, len(signal), signal)
            if path not in self._split:
                found[self.port_name(path)] = CircuitPort(is_input, Shape.cast(member.shape).width, Value.cast(value))
        return found

    def module(self) -> Module:
        """An empty module whose ``sync`` domain is clocked by the ports."""
        m = Module()
        asynchronous = self.library.reset == "async_low"
        domain = ClockDomain("sync", reset_less=not self.has_reset, async_reset=self.has_reset and asynchronous)
        domain.clk = self.clk
        if self.has_reset:
            port = getattr(self, self.library.reset_port)
            domain.rst = Signal(name="reset") if asynchronous else port
            if asynchronous:  # Yosys moves the inverter into the registers: always @(posedge clk, negedge rst_n)
                m.d.comb += domain.rst.eq(~port)
        m.domains += domain
        for path, member, payload in self.signature.flatten(self):
            for field, signal in self._split.get(path, {}).items():
                inside = payload[field]
                m.d.comb += inside.eq(signal) if member.flow == wiring.In else signal.eq(inside)
        return m

    def place(self, m: Module, child: Circuit, name: str, **connections: Any) -> Placed:
        """Put ``child`` into ``m`` and return its members.

        Inputs that are single signals are given by name. Members that are signatures are connected by the caller, who
        may instead assign to what of them goes into the child.
        """
        shared = ("clk", self.library.reset_port) if child.has_reset else ("clk",)
        members = {port: each for port, each in child.signature.members.items() if port not in shared}
        placed = Placed(wiring.Signature(members), path=(name,))
        single = {port for port, each in members.items() if each.is_port and each.flow == wiring.In}
        if single != set(connections):
            missing, unknown = sorted(single - set(connections)), sorted(set(connections) - single)
            raise TypeError(f"{child.module_name} has other inputs: missing are {missing}, unknown are {unknown}")
        for port, connection in connections.items():
            value, shape = Value.cast(connection), members[port].shape
            if len(value) != Shape.cast(shape).width:  # linters want widths to agree
                fitted = Signal(shape, name=f"{name}_{port}")
                m.d.comb += fitted.eq(value)
                value = fitted
            setattr(placed, port, value)
        ports: dict[str, Any] = {f"i_{port}": getattr(self, port) for port in shared}
        for path, member, value in placed.signature.flatten(placed):
            if path[0] not in connections:
                Value.cast(value).name = "_".join((name, *path))
                if member.flow == wiring.In:
                    self._awaited.append(Value.cast(value))
            side = "i" if member.flow == wiring.In else "o"
            if _is_split(path, member):
                ports |= {f"{side}_{child.port_name(path, field)}": value[field] for field, _ in member.shape}
            else:
                ports[f"{side}_{child.port_name(path)}"] = Value.cast(value)
        m.submodules[name] = Instance(child.module_name, **ports)
        placed.flat = {port[2:]: value for port, value in ports.items()}
        return placed

    def rtlil(self) -> str:
        """The module as Yosys reads it; raises `TypeError` when nothing drives a stream of what is placed in it."""
        sides = {True: PortDirection.Input, False: PortDirection.Output}
        ports = {name: (port.value, sides[port.is_input]) for name, port in self.ports().items()}
        self._awaited = []
        fragment = Fragment.get(self, None)
        driven = SignalSet(signal for each in fragment.statements.values() for signal in each._lhs_signals())
        missing = sorted(signal.name for signal in self._awaited if signal not in driven)
        if missing:
            raise TypeError(f"{self.module_name}: nothing drives {', '.join(missing)}")
        return str(rtlil.convert(fragment, name=self.module_name, ports=ports, emit_src=False))

    def outline(self) -> str:
        """The module's ports as Yosys reads them, of a module whose inside it need not know."""
        wires = [
            f"  wire width {port.width} {'input' if port.is_input else 'output'} {number} \\{name}"
            for number, (name, port) in enumerate(self.ports().items())
        ]
        return "\n".join(["attribute \\blackbox 1", f"module \\{self.module_name}", *wires, "end", ""])

    def written(self) -> str | None:
        """Verilog of the module, from ``module`` to ``endmodule``, when it is written and not elaborated."""
        return None


def seen(shape: Any = 1, *, name: str, **choices: Any) -> Signal:
    """A signal that keeps its name in the Verilog, where it may stand for another one: proofs look at it."""
    return Signal(shape, name=name, attrs={"keep": True}, **choices)


def _is_split(path: tuple[Any, ...], member: Any) -> bool:
    """Whether a port is a stream's payload of several fields, each of which is a port of its own."""
    return path[-1] == "payload" and isinstance(member.shape, data.StructLayout)


class Library:
    """Distinct circuits of one design: equal parameters give the same circuit, emitted once.

    Parameters
    ----------
    prefix
        First part of every module name.
    reset
        Reset style of every circuit.
    """

    def __init__(self, prefix: str, reset: ResetStyle = "sync") -> None:
        if reset not in get_args(ResetStyle):
            raise ValueError(f"reset must be one of {', '.join(get_args(ResetStyle))} (got {reset!r})")
        require_library("Yosys")  # at the end: told before the circuits are made
        self.prefix, self.reset = prefix, reset
        self.circuits: dict[tuple[Any, ...], Circuit] = {}

    @property
    def reset_port(self) -> str:
        """Name of the reset port of every circuit that has one."""
        return RESET_PORTS[self.reset]

    def name(self, *parts: object) -> str:
        """Module name from the design's prefix and the parameters that tell circuits apart."""
        return "_".join([self.prefix, *map(str, parts)])

    def make(self, kind: type[Circuit], *parameters: Any, **flags: Any) -> Circuit:
        """The circuit of a kind with these parameters, made on first use."""
        key = (kind, parameters, tuple(sorted(flags.items())))
        if key not in self.circuits:
            self.circuits[key] = kind(self, *parameters, **flags)
        return self.circuits[key]

    def verilog(self, top: Circuit, told: Callable[[int], None] = lambda _: None) -> dict[str, str]:
        """Verilog text of ``top`` and of every circuit of this library, by module name.

        Every circuit is converted to RTLIL by itself. Yosys turns many of them into Verilog at a time, since starting
        it takes longer than its work, while the next ones are converted.

        Parameters
        ----------
        top
            The circuit that holds all others.
        told
            Called with the number of circuits that are converted.
        """
        batch: dict[str, str] = {}
        written: dict[str, str] = {}
        done: set[str] = set()
        running: list[Future[dict[str, str]]] = []
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool, VerilogWriter() as writer, _few_collections() as tidy:
            pending = [top]
            while pending:
                for circuit in pending:
                    text = circuit.written()
                    done.add(circuit.module_name)
                    if text is None:
                        batch[circuit.module_name] = circuit.rtlil()
                    else:
                        written[circuit.module_name] = text
                    told(len(done))
                    tidy()
                    if sum(map(len, batch.values())) > BATCH:
                        running.append(pool.submit(writer.modules, batch, self._outlines(batch)))
                        batch = {}
                pending = [c for c in self.circuits.values() if c.module_name not in done]
            if batch:
                running.append(pool.submit(writer.modules, batch, self._outlines(batch)))
            modules = {name: text for each in running for name, text in each.result().items()} | written
        return {name: modules[name] for name in sorted(modules)}

    def _outlines(self, batch: Mapping[str, str]) -> list[str]:
        """RTLIL of the ports of what circuits of a batch hold that is converted elsewhere."""
        held = {name for text in batch.values() for name in _HELD.findall(text)} - batch.keys()
        made = {circuit.module_name: circuit for circuit in self.circuits.values()}
        return [made[name].outline() for name in sorted(held & made.keys()) if made[name].written() is None]


_HELD = re.compile(r"^  cell \\(\S+) ", re.M)
"""The beginning of an instance in RTLIL."""


@contextmanager
def _few_collections() -> Iterator[Callable[[], None]]:
    """Leave the garbage collector out: Amaranth makes millions of small objects, and looking through them is slow.

    What is yielded looks through the newest of them when they have become many, so that memory stays small.
    """

    def tidy() -> None:
        if gc.get_count()[0] > MANY_OBJECTS:
            gc.collect(0)

    enabled = gc.isenabled()
    gc.disable()
    try:
        yield tidy
    finally:
        if enabled:
            gc.enable()
