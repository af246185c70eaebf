"""Verilog about channels and queues that several proofs of a tile's modules share."""

from __future__ import annotations

from siliconloom.rtl.npu.geometry import MEMORY_BITS, Geometry, log2


class Offers:
    """A channel that a module sends on: what it offers while nobody takes it stays as it is."""

    def __init__(self, name: str, fields: tuple[str, ...], widths: tuple[int, ...]) -> None:
        self.name, self.payload, self.bits = name, f"{{{', '.join(fields)}}}", sum(widths)
        self.valid, self.ready = f"{name}valid", f"{name}ready"
        self.sent = f"({self.valid} && {self.ready})"

    @property
    def state(self) -> str:
        """Registers: whether it waited in the cycle before, and with what."""
        waited, offered = self.register("waited"), self.register("offered")
        return f"""
  reg {waited};
  reg [{self.bits - 1}:0] {offered};
  always @(posedge clk) if (reset) {waited} <= 0; else {waited} <= {self.valid} && !{self.ready};
  always @(posedge clk) {offered} <= {self.payload};"""

    @property
    def stays(self) -> str:
        return f"!{self.register('waited')} || ({self.valid} && {self.payload} == {self.register('offered')})"

    def register(self, what: str) -> str:
        return f"{self.name.rstrip('_')}_{what}"


def burst_offers(name: str) -> Offers:
    """The address channel of a wide master."""
    return Offers(f"{name}_", (f"{name}_address", f"{name}_length"), (MEMORY_BITS, 8))


def legal_burst(valid: str, address: str, length: str, beat: int, page: int) -> dict[str, str]:
    """What AXI4 asks of a burst of full beats (AMBA AXI4 specification, A3.4.1)."""
    within = log2(page)
    ends = f"{{1'b0, {address}[{within - 1}:0]}} + ({{{max(within - 7, 1)}'d0, {length}}} + 1'b1) * {beat}"
    found = {"page": f"!{valid} || ({ends} <= {page})"}
    if beat > 1:
        found["aligned"] = f"!{valid} || {address}[{log2(beat) - 1}:0] == 0"
    return found


def beat_offers(name: str, geometry: Geometry) -> Offers:
    """The data channel of a wide master that writes."""
    return Offers(
        f"{name}_", tuple(f"{name}_{each}" for each in ("data", "lanes", "last")), (8 * geometry.bus, geometry.bus, 1)
    )


def sound_queue(name: str, depth: int) -> tuple[dict[str, tuple[int, str]], str]:
    """Registers of a queue inside, and that they make sense."""
    bits, slot = depth.bit_length(), max((depth - 1).bit_length(), 1)
    if depth == 1:
        wires = {f"{name}_level": (bits, f"{name}.level")}
        wires |= {f"{name}_free": (1, f"{name}.i_ready"), f"{name}_filled": (1, f"{name}.o_valid")}
        return wires, f"{name}_free == ({name}_level == 0) && {name}_filled == ({name}_level != 0)"
    wires = {
        f"{name}_level": (bits, f"{name}.level"),
        f"{name}_read": (slot, f"{name}.read_slot"),
        f"{name}_write": (slot, f"{name}.write_slot"),
    }
    level, read, write = wires
    wires |= {f"{name}_free": (1, f"{name}.i_ready"), f"{name}_filled": (1, f"{name}.o_valid")}
    last = f"({{2'd0, {read}}} + {level})"
    return wires, (
        f"{name}_free == ({level} != {depth}) && {name}_filled == ({level} != 0) && "
        f"{level} <= {depth} && {read} < {depth} && "
        f"{write} == ({last} >= {2 * depth} ? {last} - {2 * depth} : {last} >= {depth} ? {last} - {depth} : {last})"
    )
