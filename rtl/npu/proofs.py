"""What the modules of an NPU tile promise to the buses around it, as proofs that lie beside its Verilog."""

from __future__ import annotations

from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.cells.queue import in_memory
from siliconloom.rtl.flows.proofs import Proof
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.completion import ISSUED, Completion
from siliconloom.rtl.npu.dma import FRACTION, TIME_BITS, StoreEngine
from siliconloom.rtl.npu.gather import GatherEngine
from siliconloom.rtl.npu.geometry import LOCAL_BITS, MASK_BITS, MEMORY_BITS, PAGE, SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.interfaces import BURST
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
        _load_offers(library.make(GatherEngine, geometry)),
        _load(library.make(GatherEngine, geometry), geometry),
        _store(library.make(StoreEngine, geometry), geometry),
        _store_beats(library.make(StoreEngine, geometry), geometry),
        *(_order(library, width, StoreEngine.DEPTH) for width in widths),
        _ports(library.make(Ports, geometry), geometry),
        *(_completion(library.make(Completion, depth)) for depth in depths),
    ]


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


def _burst(name: str) -> Offers:
    """The address channel of a wide master."""
    return Offers(f"{name}_", (f"{name}_address", f"{name}_length"), (MEMORY_BITS, 8))


def _legal(valid: str, address: str, length: str, beat: int, page: int) -> dict[str, str]:
    """What AXI4 asks of a burst of full beats (AMBA AXI4 specification, A3.4.1)."""
    within = log2(page)
    ends = f"{{1'b0, {address}[{within - 1}:0]}} + ({{{max(within - 7, 1)}'d0, {length}}} + 1'b1) * {beat}"
    found = {"page": f"!{valid} || ({ends} <= {page})"}
    if beat > 1:
        found["aligned"] = f"!{valid} || {address}[{log2(beat) - 1}:0] == 0"
    return found


def _registers(circuit: Registers) -> Proof:
    """The AXI4-Lite slave."""
    answers = (Offers("s_axi_b", ("s_axi_bresp",), (2,)), Offers("s_axi_r", ("s_axi_rdata", "s_axi_rresp"), (32, 2)))
    control = register_map().by_name["control"].offset >> 2
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
        induction=1,
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
    ask, beat, beats = _burst("memory_burst"), geometry.port_bytes, circuit.beats
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
        induction=1,
        wires={"left": (bits, "left")},
        state=state + ask.state,
        assumes={
            "program": f"!start || (base[{within - 1}:0] == 0 && words <= {geometry.program_words})",
            "once": f"!start || !{ask.valid}",
        },
        asserts={
            "stays": ask.stays,
            **_legal(ask.valid, "memory_burst_address", "memory_burst_length", beat, PAGE),
            "asks": f"{ask.valid} == (owed != 0)",
            "in_order": f"!{ask.valid} || (memory_burst_address == next_address && memory_burst_length < owed)",
        },
        invariants={"owed": "left == owed && (owed == 0 || memory_burst_address == next_address)"}
        | ({"beats": f"memory_burst_address[{log2(beat) - 1}:0] == 0 || left == 0"} if beat > 1 else {}),
        covers={"all": "owed != 0 && memory_burst_ready && memory_burst_length + 1'b1 == owed"},
    )


def _load_offers(circuit: GatherEngine) -> Proof:
    """That a load's address, once its time has come, waits for the bus."""
    ask, lead = _burst("memory_burst"), TIME_BITS + FRACTION + 1
    state = """
  reg has_port;
  always @(posedge clk) if (reset) has_port <= 0;
  else has_port <= instruction_valid && instruction_ready || has_port && !read;"""
    return Proof(
        name="load_offers",
        circuit=circuit,
        claim="reads of loads: addresses stay until they are taken, for 2^46 cycles",
        depth=4,
        induction=1,
        cut=("rows",),
        wires={
            "lead": (lead, "pace_lead"),
            "active": (1, "active"),
            "ending": (1, "pace_ending"),
            "unknown": (1, "unknown"),
        },
        state=state + ask.state,
        assumes={"sound": "!misaligned", "short": f"!has_port || lead[{lead - 1}] == lead[{lead - 2}]"},
        asserts={"stays": ask.stays},
        invariants={"held": "has_port == (active || ending) && !(active && ending)", "unknown": "active || !unknown"},
        covers={"row": "has_port && active && !unknown", "gathered": "has_port && unknown"},
    )


def _load(circuit: GatherEngine, geometry: Geometry) -> Proof:
    """Addresses of loads."""
    ask, bus = _burst("memory_burst"), geometry.bus
    offset = log2(bus)
    mask = f"~{MEMORY_BITS}'d{bus - 1}"
    state = f"""
  wire taken = instruction_valid && instruction_ready;
  wire [{SIZE_BITS}:0] asked = memory_burst_length + 1'b1;
  wire row_over = {ask.sent} && asked == owed;
  reg [{MEMORY_BITS - 1}:0] next_address, row, step;
  reg [{SIZE_BITS - 1}:0] owed, width, rows;
  reg indexed, has_port;
  always @(posedge clk) if (reset) has_port <= 0;
  else if (taken) begin
    has_port <= 1;
    indexed <= instruction_indexed;
    next_address <= instruction_memory; row <= instruction_memory; step <= instruction_pitch;
    owed <= (instruction_n + {SIZE_BITS}'d{bus - 1}) >> {offset};
    width <= (instruction_n + {SIZE_BITS}'d{bus - 1}) >> {offset};
    rows <= instruction_m;
  end else begin
    if (read) has_port <= 0;
    if ({ask.sent}) begin
      owed <= row_over ? width : owed - asked;
      rows <= rows - row_over;
      next_address <= row_over ? row + step : next_address + asked * {bus};
      if (row_over) row <= row + step;
    end
  end"""
    wires = {
        "active": (1, "active"),
        "ending": (1, "pace_ending"),
        "unknown": (1, "unknown"),
        "gathers": (1, "gathers"),
        "left": (SIZE_BITS, "burst_left"),
        "beats": (SIZE_BITS, "burst_width"),
        "at": (MEMORY_BITS, "burst_address"),
        "length": (9, "burst_length"),
        "ends": (1, "burst_ends"),
        "row_at": (MEMORY_BITS, "row"),
        "pitch": (MEMORY_BITS, "pitch"),
        "rows_left": (SIZE_BITS, "rows_left"),
    }
    page = log2(geometry.page)
    return Proof(
        name="load",
        circuit=circuit,
        claim="reads of loads: legal AXI4 bursts, and of every transfer each beat of each row once, in order, at any "
        "pace; gathered rows may be anywhere",
        depth=6,
        induction=1,
        cut=("rows", "pace_lead"),
        wires=wires,
        state=state,
        assumes={"sound": "!misaligned", "sizes": f"!taken || instruction_n <= {(1 << SIZE_BITS) - bus}"},
        asserts={
            **_legal(ask.valid, "memory_burst_address", "memory_burst_length", bus, geometry.page),
            "within": f"!{ask.valid} || (has_port && asked <= owed && rows != 0)",
            "in_order": f"!{ask.valid} || indexed || memory_burst_address == (next_address & {mask})",
            "all": "!read || (has_port && rows == row_over)",
            "port": "instruction_ready == (!has_port || read)",
        },
        invariants={
            "held": "has_port == (active || ending) && !(active && ending)",
            "rows": "!has_port || (active ? rows != 0 && rows == rows_left : rows == 0)",
            "owed": "!active || (owed == left && width == beats && owed != 0 && width != 0)",
            "at": "!active || (indexed == gathers && (!unknown || indexed))",
            "place": "!active || indexed || (at == next_address && row == row_at && step == pitch)",
            "burst": f"!active || (length != 0 && length <= left && length <= 256 && ends == (length == left) && "
            f"{{1'b0, at[{page - 1}:{offset}]}} + length <= {geometry.page // bus})",
            "unknown": "active ? !unknown || owed == width : !unknown",
        },
        covers={"rows": "has_port && row_over && rows == 2", "burst": "memory_burst_valid && memory_burst_length != 0"},
    )


def _queue(name: str, depth: int) -> tuple[dict[str, tuple[int, str]], str]:
    """Registers of a queue inside, and that they make sense."""
    bits, slot = depth.bit_length(), max((depth - 1).bit_length(), 1)
    if depth == 1:
        return {f"{name}_level": (bits, f"{name}.level")}, "1"
    wires = {
        f"{name}_level": (bits, f"{name}.level"),
        f"{name}_read": (slot, f"{name}.read_slot"),
        f"{name}_write": (slot, f"{name}.write_slot"),
    }
    level, read, write = wires
    last = f"({{2'd0, {read}}} + {level})"
    return wires, (
        f"{level} <= {depth} && {read} < {depth} && "
        f"{write} == ({last} >= {2 * depth} ? {last} - {2 * depth} : {last} >= {depth} ? {last} - {depth} : {last})"
    )


def _store(circuit: StoreEngine, geometry: Geometry) -> Proof:
    """Addresses and data of stores, as the two queues in front of the bus offer them."""
    ask = _burst("memory_burst")
    addresses, sound_addresses = _queue("addresses", circuit.DEPTH)
    beats, sound_beats = _queue("data", circuit.DEPTH)
    # a beat that is offered stays as it is when its place in the queue is not left, and nothing is written there
    state = """
  reg waited, overwritten;
  reg [2:0] offered_from;
  always @(posedge clk) if (reset) waited <= 0; else waited <= memory_beat_valid && !memory_beat_ready;
  always @(posedge clk) begin
    offered_from <= data_read;
    overwritten <= pushes[1] && data_level < 8 && data_write == data_read;
  end"""
    return Proof(
        name="store",
        circuit=circuit,
        claim="writes of stores: addresses and data go through their queues as they are, and stay until they are taken",
        depth=8,
        induction=1,
        cut=("beat", "rotator", "pace_lead"),
        wires={
            **addresses,
            **beats,
            "pushes": (2, "pushes"),
            "begins": (1, "begin"),
            "head": (MEMORY_BITS + 8, "head"),
            "beat": (9 * geometry.bus + 1, "beat"),
            "address_in": (MEMORY_BITS + 8, "addresses.i_payload"),
            "address_comes": (1, "addresses.i_valid"),
            "address_out": (MEMORY_BITS + 8, "addresses.o_payload"),
            "beat_in": (9 * geometry.bus + 1, "data.i_payload"),
            "beat_comes": (1, "data.i_valid"),
            "beat_out": (9 * geometry.bus + 1, "data.o_payload"),
        },
        state=ask.state + state,
        assumes={"sound": "!misaligned"},
        asserts={
            "address_stays": ask.stays,
            "data_stay": "!waited || (memory_beat_valid && data_read == offered_from && !overwritten)",
            "addresses_in": "address_comes == begins && address_in == head",
            "addresses_out": "memory_burst_valid == (addresses_level != 0) && "
            "{memory_burst_length, memory_burst_address} == address_out",
            "data_in": "beat_comes == pushes[1] && beat_in == beat",
            "data_out": "memory_beat_valid == (data_level != 0) && "
            "{memory_beat_last, memory_beat_lanes, memory_beat_data} == beat_out",
        },
        invariants={"addresses": sound_addresses, "data": sound_beats},
        covers={"waits": "waited && memory_beat_ready", "asks": "memory_burst_waited && memory_burst_ready"},
    )


def _store_beats(circuit: StoreEngine, geometry: Geometry) -> Proof:
    """What a store hands to the two queues: addresses of bursts, and their beats."""
    bus = geometry.bus
    offset, last = log2(bus), 9 * bus
    state = f"""
  wire taken = instruction_valid && instruction_ready;
  wire [{MEMORY_BITS - 1}:0] head_address = head[{MEMORY_BITS - 1}:0];
  wire [7:0] head_length = head[{MEMORY_BITS + 7}:{MEMORY_BITS}];
  reg [{MEMORY_BITS - 1}:0] next_address, next_row, step;
  reg [{SIZE_BITS - 1}:0] left, width, rows;
  reg [7:0] to_come; // beats of the burst that has begun
  reg has_port, issued, handed, issued_last, handed_last;
  wire [{SIZE_BITS}:0] owed = ({{1'b0, left}} + {bus - 1}) >> {offset};
  wire row_over = owed == 1;
  wire [7:0] comes = begins ? head_length : to_come - 1'b1;
  always @(posedge clk) if (reset) begin
    has_port <= 0; to_come <= 0; issued <= 0; handed <= 0;
  end else begin
    issued <= fetch_enable; handed <= issued;
    issued_last <= comes == 0; handed_last <= issued_last;
    if (fetch_enable) begin
      to_come <= comes;
      left <= row_over ? width : left - {bus};
      rows <= rows - row_over;
      next_address <= row_over ? next_row + step : next_address + {bus};
      if (row_over) next_row <= next_row + step;
    end
    if (taken) begin
      has_port <= 1;
      next_address <= instruction_memory; next_row <= instruction_memory; step <= instruction_pitch;
      left <= instruction_n; width <= instruction_n; rows <= instruction_m;
    end else if (read) has_port <= 0;
  end"""
    waiting = circuit.responses
    job = 2 * SIZE_BITS + 2 * LOCAL_BITS + 2 * max(offset, 1)
    wires = {
        "begins": (1, "begin"),
        "head": (MEMORY_BITS + 8, "head"),
        "pushes": (2, "pushes"),
        "last_read": (1, "last"),
        "beat": (last + 1, "beat"),
        "active": (1, "active"),
        "ending": (1, "pace_ending"),
        "in_burst": (1, "in_burst"),
        "burst_left": (9, "burst_left"),
        "job": (job, "job"),
        "inside": (1, "walk_inside"),
        "walk_left": (SIZE_BITS, "walk_left"),
        "walk_rows": (SIZE_BITS, "walk_rows_after"),
        "at": (MEMORY_BITS, "address"),
        "row": (MEMORY_BITS, "row"),
        "pitch": (MEMORY_BITS, "pitch"),
        "beats_level": (circuit.DEPTH.bit_length(), "data.level"),
        "addresses_level": (circuit.DEPTH.bit_length(), "addresses.level"),
        "responses_level": (waiting.bit_length(), "responses.level"),
    }
    return Proof(
        name="store_beats",
        circuit=circuit,
        claim="writes of stores: the address of a legal AXI4 burst and then as many beats as it says, the last one "
        "marked; of every transfer each beat of each row once, in order, at any pace; none finds its queue full",
        depth=8,
        induction=1,
        cut=("rotator", "pace_lead"),
        wires=wires,
        state=state,
        assumes={"sound": "!misaligned"},
        asserts={
            **_legal("begins", "head_address", "head_length", bus, geometry.page),
            "begins": "!begins || (fetch_enable && to_come == 0)",
            "beats": "!fetch_enable || begins || to_come != 0",
            "in_order": f"!begins || head_address == (next_address & ~{MEMORY_BITS}'d{bus - 1})",
            "within": "!begins || (has_port && head_length < owed && rows != 0)",
            "handed": "pushes == {handed, issued}",
            "last": f"!handed || beat[{last}] == handed_last",
            "room": f"(!handed || beats_level < {circuit.DEPTH}) && (!begins || addresses_level < {circuit.DEPTH}) && "
            f"(!begins || responses_level < {waiting})",
            "all": "!read || (has_port && rows == (fetch_enable && row_over))",
            "port": "instruction_ready == (!has_port || read)",
        },
        invariants={
            "held": "has_port == (active || ending) && !(active && ending)",
            "rows": "!has_port || (active ? rows != 0 : rows == 0)",
            "walk": "!active || (left != 0 && width != 0 && left <= width && "
            f"width == job[{2 * SIZE_BITS - 1}:{SIZE_BITS}] && left == (inside ? walk_left : width) && "
            f"rows == (inside ? walk_rows : job[{SIZE_BITS - 1}:0]))",
            "place": "!active || (at == next_address && row == next_row && step == pitch)",
            "burst": "in_burst == (to_come != 0) && (!in_burst || "
            "(burst_left == to_come && active && to_come <= owed))",
            "idle": "active || !inside",
            "last": "!issued || issued_last == last_read",
            "queues": f"beats_level + pushes[0] + pushes[1] <= {circuit.DEPTH} && "
            f"addresses_level <= {circuit.DEPTH} && responses_level <= {waiting}",
        },
        covers={
            "burst": "handed && handed_last && issued",
            "rows": "fetch_enable && row_over && rows == 2 && has_port",
        },
    )


def _beats(name: str, geometry: Geometry) -> Offers:
    """The data channel of a wide master that writes."""
    return Offers(
        f"{name}_", tuple(f"{name}_{each}" for each in ("data", "lanes", "last")), (8 * geometry.bus, geometry.bus, 1)
    )


def _order(library: Library, width: int, depth: int) -> Proof:
    """What goes into a queue comes out, once, in order; of the payload one bit, any one, is followed."""
    bits = depth.bit_length()
    # a queue's circuit is not made here for its ports: one in a memory that is not used is a mistake to Amaranth
    circuit = QueuePorts(library, width, depth)
    wires, sound = _queue("", depth)
    wires = {f"its{name}": (size, place.removeprefix(".")) for name, (size, place) in wires.items() if name != "_level"}
    sound = sound.replace("_level", "level").replace("_read", "its_read").replace("_write", "its_write")
    state = f"""
  reg [{max(width - 1, 1).bit_length() - 1}:0] pick;
  always @(posedge clk) pick <= pick;
  wire taken = i_valid && i_ready;
  wire left = o_valid && o_ready;
  reg [{bits}:0] inside, ahead;
  reg marked, value;
  wire due = marked && ahead == 0;
  always @(posedge clk) if (reset) begin
    inside <= 0; marked <= 0;
  end else begin
    inside <= inside + taken - left;
    if (marked) begin
      ahead <= ahead - left;
      marked <= !(left && ahead == 0);
    end else if (taken && mark) begin
      marked <= 1; ahead <= inside - left; value <= i_payload[pick];
    end
  end"""
    invariants = {"queue": f"{sound} && (!marked || ahead < inside)"}
    wires |= {f"entry_{slot}": (width, f"entry_{slot}") for slot in range(depth)}
    slot = f"(its_read + ahead >= {depth} ? its_read + ahead - {depth} : its_read + ahead)"
    state += f"""
  wire [{depth - 1}:0] entries = {{{", ".join(f"entry_{slot}[pick]" for slot in reversed(range(depth)))}}};"""
    invariants["entry"] = f"!marked || entries[{slot}] == value"
    return Proof(
        name=f"queue_{width}x{depth}",
        circuit=circuit,
        claim="what goes into the queue comes out as it went in, once, in order",
        depth=depth + 3,
        induction=1,
        wires=wires,
        free={"mark": 1},
        state=state,
        assumes={"bit": f"pick < {width}"},
        asserts={
            "ready": f"i_ready == (inside < {depth})",
            "valid": "o_valid == (inside != 0)",
            "level": "level == inside",
            "in_order": "!due || o_payload[pick] == value",
        },
        invariants=invariants,
        covers={"full": f"inside == {depth}", "passed": "due && left && value && ahead != inside"},
    )


class QueuePorts(Circuit):
    """The ports of a queue of the design."""

    def __init__(self, library: Library, width: int, depth: int) -> None:
        self.width, self.depth = width, depth
        ports = {"i": In(stream.Signature(width)), "o": Out(stream.Signature(width)), "level": Out(range(depth + 1))}
        super().__init__(library, library.name("queue", f"{width}x{depth}"), ports, reset=True)


def _ports(circuit: Ports, geometry: Geometry) -> Proof:
    """One wide master on several ports."""
    names, state, wires = prefixes(geometry), "", dict[str, tuple[int, str]]()
    asserts, invariants, assumes = dict[str, str](), dict[str, str](), dict[str, str]()
    sources = {"ar": "read_burst", "aw": "write_burst", "w": "write_beat"}
    bus, width = geometry.bus, geometry.port_bytes
    channels = {"ar": _burst("read_burst"), "aw": _burst("write_burst"), "w": _beats("write_beat", geometry)}
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
        induction=1,
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
    wires, sound = _queue("events", depth)
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
    entries = ", ".join(f"entry_{slot}" for slot in reversed(range(depth)))
    slot = (
        f"(events_read + ahead >= {depth} ? events_read + ahead - {depth} : events_read + ahead)" if depth > 1 else "0"
    )
    state += f"""
  wire [{ISSUED.size * depth - 1}:0] entries = {{{entries}}};
  wire [{ISSUED.size - 1}:0] entry = entries[{slot} * {ISSUED.size} +: {ISSUED.size}];"""
    return Proof(
        name=circuit.module_name.removeprefix(f"{circuit.library.prefix}_"),
        circuit=circuit,
        claim="what an instruction posts is given once, in the order of the instructions, when its event has happened; "
        "what a barrier posts when it is the oldest",
        depth=min(depth, MANY) + 4,
        induction=1,
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
        },
        covers={
            "passed": "due && left && !marked_barrier && marked_mask == 5",
            "barrier": "due && left && marked_barrier && pulse",
            "early": "owed == 1 && due && left",
        }
        | ({"full": f"inside == {depth}"} if depth <= MANY else {}),
    )
