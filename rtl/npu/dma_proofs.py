"""What loads and stores promise to the buses around them, see `rtl.npu.proofs`."""

from __future__ import annotations

from amaranth import Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.arch.description import INTERVAL_ONE
from siliconloom.rtl.flows.proofs import Proof
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.bursts import NextBurst
from siliconloom.rtl.npu.dma import StoreEngine
from siliconloom.rtl.npu.gather import GatherEngine
from siliconloom.rtl.npu.geometry import LOCAL_BITS, MEMORY_BITS, SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.offers import burst_offers, legal_burst, sound_queue
from siliconloom.rtl.npu.pace import FRACTION, TIME_BITS, slack_of


def load_offers_proof(circuit: GatherEngine) -> Proof:
    """That a load's address, once its time has come, waits for the bus."""
    ask, lead = burst_offers("memory_burst"), TIME_BITS + FRACTION + 1
    slacks, ordered = slacks_of(circuit.geometry)
    state = """
  reg has_port;
  always @(posedge clk) if (reset) has_port <= 0;
  else has_port <= instruction_valid && instruction_ready || has_port && !read;"""
    return Proof(
        name="load_offers",
        circuit=circuit,
        claim="reads of loads: addresses stay until they are taken, for 2^46 cycles",
        depth=4,
        cut=("rows",),
        wires={
            "lead": (lead, "pace_lead"),
            "active": (1, "active"),
            "ending": (1, "pace_ending"),
            "unknown": (1, "unknown"),
            **slacks,
        },
        state=state + ask.state,
        assumes={"sound": "!misaligned", "short": f"!has_port || lead[{lead - 1}] == lead[{lead - 2}]"},
        asserts={"stays": ask.stays},
        invariants={
            "held": "has_port == (active || ending) && !(active && ending)",
            "unknown": "active || !unknown",
            **ordered,
        },
        covers={"row": "has_port && active && !unknown", "gathered": "has_port && unknown"},
    )


def slacks_of(geometry: Geometry) -> tuple[dict[str, tuple[int, str]], dict[str, str]]:
    """Slacks of a load's burst, and that one which is over a cycle from now is over in its own time, too."""
    burst = NextBurst(geometry)
    wires = {"slack": (len(burst.slack), "burst_slack"), "last_slack": (len(burst.last_slack), "burst_last_slack")}
    return wires, {"slacks": "!active || $signed(slack) <= $signed(last_slack)"}


def load_proof(circuit: GatherEngine, geometry: Geometry) -> Proof:
    """Addresses of loads."""
    ask, bus = burst_offers("memory_burst"), geometry.bus
    offset, page = log2(bus), log2(geometry.page)
    slacks, ordered = slacks_of(geometry)
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
        "row_more": (SIZE_BITS, "row_more"),
        "width_more": (SIZE_BITS, "width_more"),
        "at": (MEMORY_BITS, "burst_address"),
        "more": (8, "burst_more"),
        "page_room": (page - offset, "burst_room"),
        "ends": (1, "burst_ends"),
        "row_at": (MEMORY_BITS, "row"),
        "pitch": (MEMORY_BITS, "pitch"),
        "rows_left": (SIZE_BITS, "rows_left"),
        "last_row": (1, "last_row"),
        **slacks,
    }
    return Proof(
        name="load",
        circuit=circuit,
        claim="reads of loads: legal AXI4 bursts, and of every transfer each beat of each row once, in order, at any "
        "pace; gathered rows may be anywhere",
        depth=6,
        cut=("rows", "pace_lead"),
        wires=wires,
        state=state,
        assumes={"sound": "!misaligned", "sizes": f"!taken || instruction_n <= {(1 << SIZE_BITS) - bus}"},
        asserts={
            **legal_burst(ask.valid, "memory_burst_address", "memory_burst_length", bus, geometry.page),
            "within": f"!{ask.valid} || (has_port && asked <= owed && rows != 0)",
            "in_order": f"!{ask.valid} || indexed || memory_burst_address == (next_address & {mask})",
            "all": "!read || (has_port && rows == row_over)",
            "port": "instruction_ready == (!has_port || read)",
        },
        invariants={
            "held": "has_port == (active || ending) && !(active && ending)",
            "rows": "!has_port || (active ? rows != 0 && rows == rows_left && last_row == (rows == 1) : rows == 0)",
            "owed": "!active || (owed - 1'b1 == row_more && width - 1'b1 == width_more && owed != 0 && width != 0)",
            "at": "!active || (indexed == gathers && (!unknown || indexed))",
            "place": "!active || indexed || (at == next_address && row == row_at && step == pitch)",
            "burst": f"!active || (more <= row_more && ends == (more == row_more) && more <= page_room && "
            f"page_room == ~at[{page - 1}:{offset}])",
            "unknown": "active ? !unknown || owed == width : !unknown",
            **ordered,
        },
        covers={"rows": "has_port && row_over && rows == 2", "burst": "memory_burst_valid && memory_burst_length != 0"},
    )


def store_proof(circuit: StoreEngine, geometry: Geometry) -> Proof:
    """Addresses and data of stores, as the two queues in front of the bus offer them."""
    ask = burst_offers("memory_burst")
    addresses, sound_addresses = sound_queue("addresses", circuit.DEPTH)
    beats, sound_beats = sound_queue("data", circuit.DEPTH)
    # a beat that is offered stays as it is when its place in the queue is not left, and nothing is written there
    state = f"""
  reg waited, overwritten;
  reg [{(circuit.DEPTH - 1).bit_length() - 1}:0] offered_from;
  always @(posedge clk) if (reset) waited <= 0; else waited <= memory_beat_valid && !memory_beat_ready;
  always @(posedge clk) begin
    offered_from <= data_read;
    overwritten <= pushes[1] && data_level < {circuit.DEPTH} && data_write == data_read;
  end"""
    return Proof(
        name="store",
        circuit=circuit,
        claim="writes of stores: addresses and data go through their queues as they are, and stay until they are taken",
        depth=8,
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


def store_beats_proof(circuit: StoreEngine, geometry: Geometry) -> Proof:
    """What a store hands to the two queues: addresses of bursts, and their beats."""
    bus = geometry.bus
    offset, last, page = log2(bus), 9 * bus, log2(geometry.page)
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
    job = 2 * SIZE_BITS + 2 * LOCAL_BITS + 2 * max(offset, 1) + 2
    wires = {
        "begins": (1, "begin"),
        "head": (MEMORY_BITS + 8, "head"),
        "pushes": (2, "pushes"),
        "last_read": (1, "last"),
        "beat": (last + 1, "beat"),
        "active": (1, "active"),
        "ending": (1, "pace_ending"),
        "in_burst": (1, "in_burst"),
        "burst_left": (8, "burst_left"),
        "one_left": (1, "one_left"),
        "more": (8, "burst_more"),
        "burst_ends": (1, "burst_ends"),
        "alone": (1, "burst_alone"),
        "row_more": (SIZE_BITS, "row_more"),
        "width_more": (SIZE_BITS, "width_more"),
        "page_room": (page - offset, "burst_room"),
        "job": (job, "job"),
        "walk_left": (SIZE_BITS, "walk_left"),
        "walk_rows": (SIZE_BITS, "walk_rows_after"),
        "walk_row_over": (1, "walk_row_over"),
        "walk_last_row": (1, "walk_last_row"),
        "at": (MEMORY_BITS, "address"),
        "row": (MEMORY_BITS, "row"),
        "pitch": (MEMORY_BITS, "pitch"),
        "beats_level": (circuit.DEPTH.bit_length(), "data.level"),
        "addresses_level": (circuit.DEPTH.bit_length(), "addresses.level"),
        "responses_level": (waiting.bit_length(), "responses.level"),
        **{f"{queue}_free": (1, f"{queue}.i_ready") for queue in ("addresses", "responses", "data")},
        **{f"{queue}_filled": (1, f"{queue}.o_valid") for queue in ("addresses", "responses", "data")},
        "reserved": (circuit.DEPTH.bit_length(), "reserved"),
        "place": (1, "room"),
    }
    return Proof(
        name="store_beats",
        circuit=circuit,
        claim="writes of stores: the address of a legal AXI4 burst and then as many beats as it says, the last one "
        "marked; of every transfer each beat of each row once, in order, at any pace; none finds its queue full",
        depth=8,
        cut=("rotator", "pace_lead"),
        wires=wires,
        state=state,
        assumes={"sound": "!misaligned"},
        asserts={
            **legal_burst("begins", "head_address", "head_length", bus, geometry.page),
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
            f"width == job[{2 * SIZE_BITS - 1}:{SIZE_BITS}] && left == walk_left && rows == walk_rows)",
            "job": f"!active || job[{job - 2}] == (width <= {bus})",
            "ends": f"!active || (walk_row_over == (left <= {bus}) && walk_last_row == (rows == 1))",
            "ahead": f"!active || (row_more == owed - 1'b1 && width_more == ({{1'b0, width}} - 1'b1) >> {offset} && "
            f"more <= row_more && burst_ends == (more == row_more) && more <= page_room && alone == (more == 0) && "
            f"page_room == ~at[{page - 1}:{offset}])",
            "place": "!active || (at == next_address && row == next_row && step == pitch)",
            "burst": "in_burst == (to_come != 0) && (!in_burst || "
            "(burst_left == to_come && one_left == (to_come == 1) && active && to_come <= owed))",
            "last": "!issued || issued_last == last_read",
            "reserved": "reserved == beats_level + pushes[0] + pushes[1] && "
            f"reserved <= {circuit.DEPTH} && place == (reserved != {circuit.DEPTH})",
            "free": f"addresses_free == (addresses_level != {circuit.DEPTH}) && "
            f"responses_free == (responses_level != {waiting}) && data_free == (beats_level != {circuit.DEPTH})",
            "filled": "addresses_filled == (addresses_level != 0) && responses_filled == (responses_level != 0) && "
            "data_filled == (beats_level != 0)",
            "queues": f"beats_level + pushes[0] + pushes[1] <= {circuit.DEPTH} && "
            f"addresses_level <= {circuit.DEPTH} && responses_level <= {waiting}",
        },
        covers={
            "burst": "handed && handed_last && issued",
            "rows": "fetch_enable && row_over && rows == 2 && has_port",
        },
    )


def store_pace_proof(circuit: StoreEngine, geometry: Geometry) -> Proof:
    """That a store's beats go out when the regulator says so, each of a row, not its last one alone."""
    bits = TIME_BITS + FRACTION + 1
    last = len(slack_of(1, Signal(range((1 + geometry.access // geometry.bus) * geometry.interval))))
    inner = geometry.interval - 2 * INTERVAL_ONE
    state = f"""
  wire row_ends = walk_row_over;
  wire signed [{bits - 1}:0] ahead = lead;
  wire signed [{last - 1}:0] last_slack = slack;
  wire signed [{bits - 1}:0] its_slack = row_ends ? last_slack : {"-" if inner < 0 else ""}{bits}'sd{abs(inner)};
  wire signed [{bits}:0] left = ahead + its_slack;"""
    return Proof(
        name="store_pace",
        circuit=circuit,
        claim="writes of stores: every beat goes out as soon as what was sent and it may be over a cycle from then, "
        "where there is room, for 2^46 cycles",
        depth=6,
        cut=("beat", "rotator"),
        wires={
            "lead": (bits, "pace_lead"),
            "due": (1, "due"),
            "active": (1, "active"),
            "ending": (1, "pace_ending"),
            "walk_row_over": (1, "walk_row_over"),
            "slack": (last, "last_slack"),
            "place": (1, "room"),
            "in_burst": (1, "in_burst"),
            "addresses_free": (1, "addresses.i_ready"),
            "responses_free": (1, "responses.i_ready"),
        },
        state=state,
        assumes={"sound": "!misaligned", "short": f"lead[{bits - 1}] == lead[{bits - 2}]"},
        asserts={
            "due": f"!active || due == left[{bits}]",
            "at_once": "fetch_enable == (active && due && place && (in_burst || (addresses_free && responses_free)))",
        },
        invariants={"held": "!(active && ending)"},
        covers={"within": "fetch_enable && !row_ends", "ends": "fetch_enable && row_ends"},
    )


def order_proof(library: Library, width: int, depth: int) -> Proof:
    """What goes into a queue comes out, once, in order; of the payload one bit, any one, is followed."""
    bits = depth.bit_length()
    # a queue's circuit is not made here for its ports: one in a memory that is not used is a mistake to Amaranth
    circuit = QueuePorts(library, width, depth)
    wires, sound = sound_queue("", depth)
    slots = ("_read", "_write")
    wires = {f"its{name}": (size, place.removeprefix(".")) for name, (size, place) in wires.items() if name in slots}
    for name in slots:
        sound = sound.replace(name, f"its{name}")
    sound = sound.replace("_level", "level").replace("_free", "i_ready").replace("_filled", "o_valid")
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
