import csv
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.dram import FIELDS, dram_names, load_dram
from siliconloom.cli import main
from siliconloom.sim.dram.replay import decode_addresses, replay
from siliconloom.sim.dram.state import ACT, READ, READ_CLOSE
from tests.sim.dram_memories import memories
from tests.sim.dram_rules import broken_rules

DATA = Path(__file__).parent / "data" / "dram"
MEMORIES = {"DDR4_2400.1rank": "ddr4", "HBM2_1ch": "hbm2"}
TOLERANCE = {"seq_rd": 0.02, "seq_mix": 0.02, "rand_rd": 0.05, "stride8k_rd": 0.05}


def trace(name):
    with gzip.open(DATA / f"{name}.csv.gz", "rt") as file:
        rows = [(int(r["cycle"]), r["op"] == "W", int(r["address"], 0)) for r in csv.DictReader(file)]
    return np.array(rows, np.int64).T


with (DATA / "oracle.csv").open() as file:
    ROWS = list(csv.DictReader(file))
ORACLE = [row for row in ROWS if row["simulator"] == "DRAMsim3"]
RAMULATOR = [row for row in ROWS if row["simulator"] == "Ramulator2" and row["memory"].startswith("DDR4")]
DDR4_2400R = [
    ("clock_period", "0.833 ns"),
    ("timing.CL", "16"),
    ("timing.tRCD", "16"),
    ("timing.tRP", "16"),
    ("timing.tRC", "55"),
    ("timing.tRFC", "421"),
    ("timing.tREFI", "9364"),
    ("controller.queues", "shared"),
    ("controller.row_hits", "1000000"),
]
"""Ramulator2's preset; its 32 places are for all banks, and it closes a row only when nothing waits for it."""
RAMULATOR_HBM2 = [
    row
    for row in ROWS
    if row["simulator"] == "Ramulator2" and row["memory"].startswith("HBM2") and row["mapping"] == "ChRaBaRoCo"
]
HBM2_2000 = [
    ("timing.CL", "14"),
    ("timing.CWL", "5"),
    ("timing.tRCD", "14"),
    ("timing.tRP", "14"),
    ("timing.tRAS", "34"),
    ("timing.tRC", "48"),
    ("timing.tRRD_S", "4"),
    ("timing.tRRD_L", "4"),
    ("timing.tFAW", "15"),
    ("timing.tCCD_S", "2"),
    ("timing.tCCD_L", "4"),
    ("timing.tWR", "16"),
    ("timing.tWTR_S", "6"),
    ("timing.tWTR_L", "8"),
    ("timing.tRTP", "5"),
    ("timing.tRFC", "350"),
    ("timing.tREFI", "3900"),
    ("organization.channels", "2"),
    ("organization.rows", "65536"),
    ("organization.columns", "128"),
    ("organization.bus_bits", "64"),
    *DDR4_2400R[-2:],
    ("mapping", "rachbgbaroco"),
    ("controller.two_commands", "true"),
]
"""Ramulator2 2.1's presets HBM2_2000Mbps and HBM2_8Gb; the pseudo-channel is above the banks, so only one is used."""


@pytest.mark.parametrize("row", ORACLE, ids=lambda r: f"{r['memory']}-{r['refresh']}-{r['trace']}")
def test_total_cycles_agree_with_dramsim3(row):
    refresh = "rank" if row["refresh"] == "rank" else "none"
    dram = load_dram(MEMORIES[row["memory"]], [("controller.refresh", refresh)])
    cycle, write, address = trace(row["trace"])
    found = replay(dram, cycle, write, address, log=True)
    assert found.cycles == replay(dram, cycle, write, address).cycles
    assert found.cycles == pytest.approx(int(row["cycles"]), rel=TOLERANCE[row["trace"]])
    reads = (found.done - found.entered)[write == 0]
    assert reads.mean() == pytest.approx(float(row["avg_latency"]), rel=0.06)
    assert broken_rules(dram, found.commands) == []


@pytest.mark.parametrize("row", RAMULATOR, ids=lambda r: f"{r['mapping']}-{r['refresh']}-{r['trace']}")
def test_total_cycles_agree_with_ramulator2(row):
    mapping = {"RoBaRaCoCh": "robabgracoch", "ChRaBaRoCo": "chrabgbaroco"}[row["mapping"]]
    refresh = "rank" if row["refresh"] == "AllBank" else "none"
    dram = load_dram("ddr4", [*DDR4_2400R, ("mapping", mapping), ("controller.refresh", refresh)])
    found = replay(dram, *trace(row["trace"]), log=True)
    assert found.cycles == pytest.approx(int(row["cycles"]), rel=TOLERANCE[row["trace"]])
    assert (found.done - found.entered).mean() == pytest.approx(float(row["avg_latency"]), rel=0.07)
    assert broken_rules(dram, found.commands) == []


@pytest.mark.parametrize("row", RAMULATOR_HBM2, ids=lambda r: f"{r['refresh']}-{r['trace']}")
def test_total_cycles_of_pseudo_channels_agree_with_ramulator2(row):
    """One of two is used, or eight of sixteen: lines go to the eight channels in turn, all behind one queue."""
    eight = row["memory"].endswith("8ch")
    sixteen = [("organization.channels", "16"), ("mapping", "chrabgbarococh3"), ("controller.admission", "shared")]
    wide = sixteen if eight else []
    refresh = "rank" if row["refresh"] == "AllBank" else "none"
    dram = load_dram("hbm2", [*HBM2_2000, ("controller.refresh", refresh), *wide])
    found = replay(dram, *trace(row["trace"]), log=True)
    used = {ch for _, ch, command, *_ in found.commands.tolist() if command == READ}
    assert used == (set(range(8)) if eight else {0})
    assert found.cycles == pytest.approx(int(row["cycles"]), rel=TOLERANCE[row["trace"].replace("32", "")])
    assert (found.done - found.entered).mean() == pytest.approx(float(row["avg_latency"]), rel=0.07)
    assert broken_rules(dram, found.commands) == []


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=150, deadline=None)
@given(memories(), st.integers(0, 2**32 - 1), st.integers(1, 300), st.sampled_from([1, 4, 10**6]), st.floats(0, 1))
def test_no_command_breaks_a_rule_and_every_request_is_done(dram, seed, count, spread, writes):
    random = np.random.default_rng(seed)
    size = dram.organization.request_bytes
    lines = random.integers(0, min(dram.organization.capacity // size, 40 * spread), count)
    cycle = np.sort(random.integers(0, random.choice([1, 10 * count]), count))
    write = (random.random(count) < writes).astype(np.int64)
    found = replay(dram, cycle, write, lines * size, log=True)
    assert broken_rules(dram, found.commands) == []
    assert np.all(found.entered >= cycle)
    channel = decode_addresses(dram, lines * size)[0]
    for each in np.unique(channel):
        assert np.all(np.diff(found.entered[channel == each]) > 0), "one request a cycle and channel, in order"
    if dram.controller.admission == "shared":
        assert np.all(np.diff(found.entered) >= 0), "in order"
    assert np.all(found.done > found.entered)
    assert found.cycles == found.done.max()
    columns = np.isin(found.commands[:, 2], (2, 3, 5, 6)).sum()
    assert columns <= count
    assert columns >= len(np.unique(lines[write == 0]))


@pytest.mark.slow(seconds=1)
@settings(max_examples=100, deadline=None)
@given(memories(), st.integers(0, 2**32 - 1))
def test_a_mapping_with_split_fields_and_exclusive_ors_is_a_bijection(dram, seed):
    """Every line of a small memory has a place of its own, and every place a line."""
    organization, widths = dram.organization, dram.widths()
    lines = min(1 << sum(widths.values()), 1 << 14)
    base = int(np.random.default_rng(seed).integers(0, (1 << sum(widths.values())) // lines)) * lines
    parts = decode_addresses(dram, (base + np.arange(lines)) * organization.request_bytes)
    place = np.zeros(lines, np.int64)
    for field, column in zip(FIELDS, parts, strict=True):
        assert column.min() >= 0
        assert column.max() < 1 << widths[field]
        place = place << widths[field] | column
    assert len(np.unique(place)) == lines


@given(st.integers(0, 2**30 // 32 - 1))
def test_mop4clxor_is_what_its_name_says(line):
    """Minimalist open page of four columns, and bank bits mixed with column bits, computed bit by bit."""
    sets = [("mapping", "rocobabgrachco2"), ("xor", "[ch^co0, bg^co1, ba^co3]"), ("organization.channels", "2")]
    dram = load_dram("hbm2", sets)
    widths = dram.widths()
    left, found = line, {}
    found["co"], left = left % 4, left // 4
    for field in ("ch", "ra", "bg", "ba"):
        found[field], left = left % (1 << widths[field]), left >> widths[field]
    found["co"], left = found["co"] + 4 * (left % (1 << widths["co"] - 2)), left >> widths["co"] - 2
    found["ro"] = left
    found["ch"] ^= found["co"] % 2
    found["bg"] ^= found["co"] // 2 % 4
    found["ba"] ^= found["co"] // 8 % 4
    parts = decode_addresses(dram, np.array([line * dram.organization.request_bytes]))
    assert dict(zip(FIELDS, parts[:, 0].tolist(), strict=True)) == found


@pytest.mark.slow(seconds=1)
@settings(max_examples=40, deadline=None)
@given(memories(), st.integers(0, 2**32 - 1), st.sampled_from([1, 200]))
def test_channels_that_do_not_share_a_queue_are_so_many_memories(dram, seed, spread):
    """Every request of a channel as if the others were not there; and a shared queue is no faster."""
    random = np.random.default_rng(seed)
    size, count = dram.organization.request_bytes, 400
    address = random.integers(0, dram.organization.capacity // size, count) * size
    cycle = np.sort(random.integers(0, spread, count))
    write = random.integers(0, 2, count)
    free = dram.model_copy(update={"controller": dram.controller.model_copy(update={"admission": "channel"})})
    found, channel = replay(free, cycle, write, address), decode_addresses(dram, address)[0]
    for each in np.unique(channel):
        mine = channel == each
        alone = replay(free, cycle[mine], write[mine], address[mine])
        assert np.array_equal(alone.done, found.done[mine])
        assert np.array_equal(alone.entered, found.entered[mine])


@pytest.mark.parametrize("queues", ["bank", "shared"])
def test_a_stack_of_channels_streams_at_its_peak(queues):
    """Sixteen channels take sixteen requests a cycle; one request a cycle for all would be a fraction of it."""
    sets = [("organization.channels", "16"), ("mapping", "rorabgbacoch"), ("controller.refresh", "none")]
    dram = load_dram("hbm2", [*sets, ("controller.queues", queues)])
    address = np.arange(32_000, dtype=np.int64) * dram.organization.request_bytes
    zeros = np.zeros(len(address), np.int64)
    for admission in ("channel", "shared"):
        controller = dram.controller.model_copy(update={"admission": admission})
        found = replay(dram.model_copy(update={"controller": controller}), zeros, zeros, address)
        assert found.cycles < 1.1 * 32_000 / 16 * dram.burst_cycles


def test_with_auto_precharge_every_burst_closes_its_row():
    dram = load_dram("ddr4", [("controller.page", "auto_precharge"), ("controller.refresh", "none")])
    address = np.arange(3000, dtype=np.int64) * dram.organization.request_bytes
    zeros = np.zeros(len(address), np.int64)
    found = replay(dram, zeros, zeros, address, log=True)
    assert broken_rules(dram, found.commands) == []
    assert set(found.commands[:, 2].tolist()) == {ACT, READ_CLOSE}
    assert found.row_misses == found.bursts == 3000


@given(st.permutations(FIELDS), st.lists(st.integers(0, 2**30 - 1), min_size=1, max_size=50))
def test_a_mapping_is_a_bijection(order, addresses):
    sets = [("mapping", "".join(order)), ("organization.channels", "2"), ("organization.rows", "16384")]
    dram = load_dram("hbm2", sets)
    parts = decode_addresses(dram, np.array(addresses, np.int64))
    shifts = dram.shifts()
    again = sum(parts[i] << shifts[f][0] for i, f in enumerate(("ch", "ra", "bg", "ba", "ro", "co")))
    assert again.tolist() == [a - a % dram.organization.request_bytes for a in addresses]


def test_a_stream_of_row_hits_keeps_the_bus_busy():
    dram = load_dram("hbm2", [("controller.refresh", "none")])
    lines = np.arange(4000, dtype=np.int64) * dram.organization.request_bytes
    found = replay(dram, np.zeros(4000, np.int64), np.zeros(4000, np.int64), lines)
    assert 4000 * dram.burst_cycles <= found.cycles <= 4000 * dram.burst_cycles * 1.01


def test_a_trace_may_be_gzipped_and_a_broken_one_is_a_clear_error(tmp_path, capsys):
    assert main(["dram", "hbm2", str(DATA / "seq_rd.csv.gz"), "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["requests"]) == 10_000
    for content in (b"cycle,op,address\n", (DATA / "seq_rd.csv.gz").read_bytes()[:1000]):
        (tmp_path / "t.csv.gz").write_bytes(content)
        assert main(["dram", "hbm2", str(tmp_path / "t.csv.gz")]) == 2
        lines = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("compiling")]
        assert len(lines) == 1


def write_trace(path, text):
    path.write_text("cycle,op,address\n" + text)
    return str(path)


BAD = [
    ("5,R,0x0\n3,R,0x40\n", [], ":3: cycle 3 lies before 5"),
    ("0,R,0x40000000\n", [], ":2: address 0x40000000 is outside hbm2"),
    ("0,X,0x0\n", [], ":2: op must be R or W (got 'X')"),
    ("0,R\n", [], ":2: expected cycle,op,address (got '0,R')"),
    ("0,R,zero\n", [], ":2: expected cycle,op,address"),
    ("", [], "no requests"),
    ("0,R,0\n", ["--set", "mapping=rorabgbacoco"], "mapping must be a permutation"),
    ("0,R,0\n", ["--set", "mapping=rorabgbachcoco2co"], "mapping must be a permutation"),
    ("0,R,0\n", ["--set", "mapping=roraba9bgbachco"], "mapping: ba has 2 bits (got [9] of them split off)"),
    ("0,R,0\n", ["--set", "xor=[ro^ba0]"], "xor must be of ch, ra, bg, ba with bits of ro or co"),
    ("0,R,0\n", ["--set", "xor=[ba^co9]"], "xor: co has"),
    ("0,R,0\n", ["--set", "timing.tRAS=10"], "tRAS must be at least tRCD (got tRAS 10, tRCD 14)"),
    ("0,R,0\n", ["--set", "timing.tRC=40"], "tRC must be at least tRAS + tRP = 48 (got 40)"),
    ("0,R,0\n", ["--set", "timing.tRCDD=4"], "did you mean 'tRCD'?"),
    ("0,R,0\n", ["--set", "organization.rows=1000"], "must be a power of two"),
]


@pytest.mark.parametrize(("text", "sets", "words"), BAD, ids=[b[2] for b in BAD])
def test_bad_input_is_one_clear_line_and_nothing_is_written(tmp_path, capsys, text, sets, words):
    path = write_trace(tmp_path / "t.csv", text)
    assert main(["dram", "hbm2", path, *sets, "--json", str(tmp_path / "out.json")]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert len([x for x in captured.err.splitlines() if not x.startswith("compiling")]) == 1
    assert not (tmp_path / "out.json").exists()


def test_the_command_prints_the_contracted_keys(tmp_path, capsys):
    path = write_trace(tmp_path / "t.csv", "".join(f"{i},{'RW'[i % 3 == 0]},{i * 64:#x}\n" for i in range(90)))
    log = tmp_path / "commands.csv"
    assert main(["dram", "hbm2", path, "--commands", str(log), "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) >= {"cycles", "requests", "row_hits", "row_misses", "bandwidth"}
    assert len(result["requests"]) == 90
    assert all(r["offered"] <= r["arrive"] < r["done"] <= result["cycles"] for r in result["requests"])
    assert result["bandwidth"] <= result["peak_bandwidth"]
    assert log.read_text().startswith("cycle,channel,command,rank,bank_group,bank,row,column\n")
    assert main(["dram", "hbm2", path]) == 0
    assert "read latency" in capsys.readouterr().out


@pytest.mark.parametrize("name", dram_names())
def test_a_library_memory_is_what_its_words_say_and_streams_near_its_peak(name):
    dram = load_dram(name)
    assert dram.name == name
    words = dram.description
    organization, gigabits = dram.organization, re.search(r"([\d.]+) (G|M)b/s per pin|DDR[45]-(\d+)", words)
    rate = float(gigabits[1]) * (1e9 if gigabits[2] == "G" else 1e6) if gigabits[1] else int(gigabits[3]) * 1e6
    pins = organization.channels * organization.bus_bits
    assert dram.peak_bandwidth == pytest.approx(pins / 8 * rate, rel=0.005)
    size = re.search(r"(\d+) (G|M)iB", words)
    assert organization.capacity == int(size[1]) * (2**30 if size[2] == "G" else 2**20)
    for timing, least, most in (("tRCD", 13, 19), ("tRP", 13, 19), ("tRAS", 28, 43), ("tREFI", 1800, 7900)):
        assert least <= getattr(dram.timing, timing) * dram.clock_period / 1000 <= most
    count = 60_000
    lines = np.arange(count, dtype=np.int64) * organization.request_bytes
    zeros = np.zeros(count, np.int64)
    found = replay(dram, zeros, zeros, lines)
    least = 0.75 if name == "ddr4" else 0.88  # its mapping keeps neighbours in one bank group, and tCCD_L > burst
    assert least * found.cycles <= count * dram.burst_cycles <= found.cycles
    rows = count * organization.request_bytes / organization.row_bytes
    assert found.row_misses <= rows * 1.2 + 64 * found.refreshes
