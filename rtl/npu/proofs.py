"""What the modules of an NPU tile promise to the buses around it, as proofs that lie beside its Verilog."""

from __future__ import annotations

from siliconloom.rtl.cells.queue import in_memory
from siliconloom.rtl.flows.proofs import Proof
from siliconloom.rtl.npu.completion import ISSUED, Completion
from siliconloom.rtl.npu.dma import StoreEngine
from siliconloom.rtl.npu.dma_proofs import (
    load_offers_proof,
    load_proof,
    order_proof,
    store_beats_proof,
    store_pace_proof,
    store_proof,
)
from siliconloom.rtl.npu.gather import GatherEngine
from siliconloom.rtl.npu.geometry import MASK_BITS, MEMORY_BITS, PAGE, Geometry, log2
from siliconloom.rtl.npu.interfaces import BURST
from siliconloom.rtl.npu.offers import Offers, beat_offers, burst_offers, legal_burst, sound_queue
from siliconloom.rtl.npu.ports import Ports, prefixes
from siliconloom.rtl.npu.registers import Registers, register_map
from siliconloom.rtl.npu.sequencer import FETCH_BURST, Fetch
from siliconloom.rtl.npu.tile import NpuTileCircuit


def npu_proofs(tile: NpuTileCircuit) -> list[Proof]:
    """The proofs of a tile's modules; their circuits are those of its library."""
    library, geometry = tile.library, tile.geometry
    depths = sorted({tile.tracked(unit) for unit in tile.circuits})
    # the solver does not end with a wide queue in a memory
    widths = [size for size in sorted({9 * geometry.bus + 1, BURST.size}) if not in_memory(size, StoreEngine.DEPTH)]
    return [
        _registers(library.make(Registers, geometry)),
        _fetch(library.make(Fetch, geometry), geometry),
        load_offers_proof(library.make(GatherEngine, geometry)),
        load_proof(library.make(GatherEngine, geometry), geometry),
        store_proof(library.make(StoreEngine, geometry), geometry),
        store_beats_proof(library.make(StoreEngine, geometry), geometry),
        store_pace_proof(library.make(StoreEngine, geometry), geometry),
        *(order_proof(library, width, StoreEngine.DEPTH) for width in widths),
        _ports(library.make(Ports, geometry), geometry),
        *(_completion(library.make(Completion, depth)) for depth in depths),
    ]


def _registers(circuit: Registers) -> Proof:
    """The AXI4-Lite slave."""
    answers = (Offers("s_axi_b", ("s_axi_bresp",), (2,)), Offers("s_axi_r", ("s_axi_rdata", "s_axi_rresp"), (32, 2)))
    control = register_map(circuit.geometry).by_name["control"].offset >> 2
    state = f"""
  reg [1:0] writes, reads;
  reg told;
  always @(posedge clk) if (reset) begin
    writes <= 0; reads <= 0; told <= 0;
  end else begin
    writes <= writes + (s_axi_awvalid && s_axi_awready) - (s_axi_bvalid && s_axi_bready);
    reads <= reads + (s_axi_arvalid && s_axi_arready) - (s_axi_rvalid && s_axi_rready);
    told <= s_axi_awvalid && s_axi_awready && s_axi_awaddr[11:2] == {control}
      && s_axi_wstrb[0] && s_axi_wdata[0] && !busy;
  end"""
    return Proof(
        name="registers",
        circuit=circuit,
        claim="an AXI4-Lite slave: one answer to each access, held until it is taken; a run starts when, and only "
        "when, it is told to and none is under way",
        depth=8,
        state=state + "".join(each.state for each in answers),
        asserts={
            "together": "(s_axi_awvalid && s_axi_awready) == (s_axi_wvalid && s_axi_wready)",
            "write_answered": "writes < 2 && s_axi_bvalid == (writes == 1)",
            "read_answered": "reads < 2 && s_axi_rvalid == (reads == 1)",
            "answer_stays": answers[0].stays,
            "data_stay": answers[1].stays,
            "started": "start == told",
            "okay": "s_axi_bresp == 0 && s_axi_rresp == 0",
        },
        covers={
            "start": "start",
            "write_waits": "s_axi_b_waited && s_axi_bready",
            "read_waits": "s_axi_r_waited && s_axi_rready && s_axi_rdata != 0",
        },
    )


def _fetch(circuit: Fetch, geometry: Geometry) -> Proof:
    """Reads of the program."""
    ask, beat, beats = burst_offers("memory_burst"), geometry.port_bytes, circuit.beats
    bits = (geometry.program_words * beats).bit_length()
    state = f"""
  reg [{MEMORY_BITS - 1}:0] next_address;
  reg [{bits}:0] owed;
  always @(posedge clk) if (reset) owed <= 0;
  else if (start) begin
    owed <= words * {beats};
    next_address <= base;
  end else if ({ask.sent}) begin
    owed <= owed - (memory_burst_length + 1'b1);
    next_address <= next_address + (memory_burst_length + 1'b1) * {beat};
  end"""
    within = log2(beat * beats)
    return Proof(
        name="fetch",
        circuit=circuit,
        claim="reads of the program: legal AXI4 bursts that stay until they are taken and together ask for each byte "
        "once, in order",
        depth=max(8, beats // FETCH_BURST + 4),
        wires={"left": (bits, "left")},
        state=state + ask.state,
        assumes={
            "program": f"!start || (base[{within - 1}:0] == 0 && words <= {geometry.program_words})",
            "once": f"!start || !{ask.valid}",
        },
        asserts={
            "stays": ask.stays,
            **legal_burst(ask.valid, "memory_burst_address", "memory_burst_length", beat, PAGE),
            "asks": f"{ask.valid} == (owed != 0)",
            "in_order": f"!{ask.valid} || (memory_burst_address == next_address && memory_burst_length < owed)",
        },
        invariants={"owed": "left == owed && (owed == 0 || memory_burst_address == next_address)"}
        | ({"beats": f"memory_burst_address[{log2(beat) - 1}:0] == 0 || left == 0"} if beat > 1 else {}),
        covers={"all": "owed != 0 && memory_burst_ready && memory_burst_length + 1'b1 == owed"},
    )


def _ports(circuit: Ports, geometry: Geometry) -> Proof:
    """One wide master on several ports."""
    names, state, wires = prefixes(geometry), "", dict[str, tuple[int, str]]()
    asserts, invariants, assumes = dict[str, str](), dict[str, str](), dict[str, str]()
    sources = {"ar": "read_burst", "aw": "write_burst", "w": "write_beat"}
    bus, width = geometry.bus, geometry.port_bytes
    channels = {
        "ar": burst_offers("read_burst"),
        "aw": burst_offers("write_burst"),
        "w": beat_offers("write_beat", geometry),
    }
    for kind, channel in channels.items():
        state += channel.state
        assumes[f"{kind}_stays"] = channel.stays
    for name in names:
        for kind, source in sources.items():
            sent, ahead = f"({name}_{kind}valid && {name}_{kind}ready)", f"{name}_{kind}_ahead"
            fields, widths = _fields(name, kind, geometry)
            port = Offers(f"{name}_{kind}", fields, widths)
            state += port.state
            # by how much a port is ahead of what was taken of the wide master
            state += f"""
  reg [1:0] {ahead};
  always @(posedge clk) if (reset) {ahead} <= 0;
  else {ahead} <= {ahead} + {sent} - ({source}_valid && {source}_ready);"""
            wires[f"{name}_{kind}_has"] = (1, f"{name}_{kind}_taken")
            asserts[f"{name}_{kind}_stays"] = port.stays
            asserts[f"{name}_{kind}_once"] = f"!({source}_valid && {source}_ready) || {ahead} + {sent} == 1"
            invariants[f"{name}_{kind}_ahead"] = f"{ahead} == {name}_{kind}_has && (!{ahead} || {source}_valid)"
        shift = log2(len(names))
        for kind, source in (("ar", "read_burst"), ("aw", "write_burst")):
            asserts[f"{name}_{kind}_whole"] = (
                f"!{name}_{kind}valid || ({name}_{kind}addr == {source}_address >> {shift} && {name}_{kind}len == "
                f"{source}_length && {name}_{kind}size == {log2(width)} && {name}_{kind}burst == 1 && "
                f"{name}_{kind}id == 0)"
            )
        asserts[f"{name}_last"] = f"{name}_wlast == write_beat_last"
        asserts[f"{name}_takes"] = (
            f"(!{name}_rready || ({' && '.join(f'{each}_rvalid' for each in names)})) && "
            f"(!{name}_bready || ({' && '.join(f'{each}_bvalid' for each in names)}))"
        )
    strobes = f"{{{', '.join(f'{each}_wstrb' for each in reversed(names))}}}"
    words = f"{{{', '.join(f'{each}_wdata' for each in reversed(names))}}}"
    meant = ", ".join(f"{{8{{write_beat_lanes[{lane}]}}}}" for lane in reversed(range(bus)))
    asserts["bytes"] = f"{strobes} == write_beat_lanes && {words} == (write_beat_data & {{{meant}}})"
    for side, letter, wide in (("read", "r", "beat"), ("write", "b", "answer")):
        came = " && ".join(f"{each}_{letter}valid" for each in names)
        wrong = " || ".join(f"{each}_{letter}resp[1] || {each}_{letter}id != 0" for each in names)
        asserts[f"{side}_{wide}"] = f"{side}_{wide}_valid == ({came}) && {side}_{wide}_error == ({wrong})"
    asserts["read_data"] = f"read_beat_data == {{{', '.join(f'{each}_rdata' for each in reversed(names))}}}"
    first = names[0]
    return Proof(
        name="ports",
        circuit=circuit,
        claim="each burst and each beat goes to every AXI4 port once, stays there until it is taken, and bytes that "
        "are not written are zeros",
        depth=6,
        wires=wires,
        state=state,
        assumes=assumes,
        asserts=asserts,
        invariants=invariants,
        covers={"read": f"{first}_arvalid && {first}_arready", "write": f"{first}_w_waited && {first}_wready"},
    )


def _fields(name: str, kind: str, geometry: Geometry) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Payload of a channel of an AXI4 port."""
    width = geometry.port_bytes
    if kind == "w":
        return tuple(f"{name}_w{each}" for each in ("data", "strb", "last")), (8 * width, width, 1)
    found = tuple(f"{name}_{kind}{each}" for each in ("id", "addr", "len", "size", "burst"))
    return found, (geometry.id_bits, MEMORY_BITS, 8, 3, 2)


MANY = 16
"""Instructions under way of which a proof has to see that all are reached."""


def _completion(circuit: Completion) -> Proof:
    """Events of instructions."""
    depth, mask = circuit.depth, MASK_BITS
    bits = (2 * depth).bit_length()
    wires, sound = sound_queue("events", depth)
    # one instruction, any one, is followed; `owed` are events that have happened before their instruction was oldest
    state = f"""
  wire taken = issued_valid && issued_ready;
  reg [{bits}:0] inside, owed, ahead;
  reg marked, marked_barrier;
  reg [{mask - 1}:0] marked_mask;
  wire due = marked && ahead == 0;
  always @(posedge clk) if (reset) begin
    inside <= 0; owed <= 0; marked <= 0;
  end else begin
    inside <= inside + taken - left;
    owed <= owed + pulse - finished;
    if (marked) begin
      ahead <= ahead - left;
      marked <= !(left && ahead == 0);
    end else if (taken && mark) begin
      marked <= 1; ahead <= inside - left;
      marked_barrier <= issued_barrier; marked_mask <= issued_mask;
    end
  end"""
    place = "o_payload" if depth == 1 else "memory[{}]" if in_memory(ISSUED.size, depth) else "entry_{}"
    names = {slot: place.format(slot) for slot in range(depth)}
    wires |= {f"entry_{slot}": (ISSUED.size, f"events.{name}") for slot, name in names.items()}
    wires["front"] = ISSUED.size, "events.o_payload"
    entries = ", ".join(f"entry_{slot}" for slot in reversed(range(depth)))
    slot = (
        f"(events_read + ahead >= {depth} ? events_read + ahead - {depth} : events_read + ahead)" if depth > 1 else "0"
    )
    first = "events_read" if depth > 1 else "0"
    state += f"""
  wire [{ISSUED.size * depth - 1}:0] entries = {{{entries}}};
  wire [{ISSUED.size - 1}:0] entry = entries[{slot} * {ISSUED.size} +: {ISSUED.size}];
  wire [{ISSUED.size - 1}:0] oldest = entries[{first} * {ISSUED.size} +: {ISSUED.size}];"""
    return Proof(
        name=circuit.module_name.removeprefix(f"{circuit.library.prefix}_"),
        circuit=circuit,
        claim="what an instruction posts is given once, in the order of the instructions, when its event has happened; "
        "what a barrier posts when it is the oldest",
        depth=min(depth, MANY) + 4,
        wires=wires | {"pending": (depth.bit_length(), "pending")},
        free={"mark": 1},
        state=state,
        assumes={"events": f"owed + pulse <= {depth}"},
        asserts={
            "given": "!left || !due || (give == marked_mask && finished == !marked_barrier)",
            "in_time": "!due || left == (marked_barrier || pulse || owed != 0)",
            "nothing_else": "left || (give == 0 && !finished)",
            "event": "!finished || pulse || owed != 0",
            "empty": "empty == (inside == 0)",
            "room": f"issued_ready == (inside < {depth})",
        },
        invariants={
            "queue": f"{sound} && events_level == inside && (!marked || ahead < inside)",
            "pending": "pending == owed",
            "entry": "!marked || entry == {marked_mask, marked_barrier}",
            "front": "inside == 0 || front == oldest",
        },
        covers={
            "passed": "due && left && !marked_barrier && marked_mask == 5",
            "barrier": "due && left && marked_barrier && pulse",
            "early": "owed == 1 && due && left",
        }
        | ({"full": f"inside == {depth}"} if depth <= MANY else {}),
    )
