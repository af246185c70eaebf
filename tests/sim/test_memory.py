"""A memory level described by its DRAM: its bandwidth and latency follow from commands."""

import pytest

from siliconloom.arch import load_chip
from siliconloom.arch.dram import dram_names, load_dram
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.sim.dram.memory import delivered, effective

GIB = 2**30
LPDDR5 = [("memory.dram.dram", "lpddr5"), ("memory.dram.ports", "4"), ("memory.dram.capacity", "4 GiB")]
SMALL = [("workload.layers", "1"), ("workload.sequence", "16")]


def as_arguments(sets):
    return [word for path, value in sets for word in ("--set", f"{path}={value}")]


@pytest.mark.parametrize("name", dram_names())
def test_a_stream_gets_less_than_the_pins_move_and_refresh_is_part_of_the_reason(name):
    dram, calm = load_dram(name), load_dram(name, [("controller.refresh", "none")])
    assert 0.7 * dram.peak_bandwidth < delivered(dram).bandwidth < dram.peak_bandwidth
    assert delivered(dram).bandwidth < delivered(calm).bandwidth * 1.001
    t = dram.timing
    assert delivered(dram).latency == (t.tRCD + t.CL + dram.burst_cycles) * dram.clock_period


@pytest.mark.parametrize("name", ["hbm2", "ddr4", "hbm3"])
def test_bandwidth_grows_with_the_time_between_refreshes(name):
    least = load_dram(name).timing.tRFC
    intervals = [str(least * factor) for factor in (2, 4, 8, 16, 64)]
    rates = [delivered(load_dram(name, [("timing.tREFI", interval)])).bandwidth for interval in intervals]
    assert rates == sorted(rates)
    assert rates[0] < 0.75 * rates[-1]


def test_a_level_takes_its_figures_from_its_channels():
    chip = load_chip("npu-edge-int8", LPDDR5)
    channel, level = delivered(load_dram("lpddr5")), effective(chip).nearest
    assert level.bandwidth == 4 * channel.bandwidth < chip.nearest.bandwidth
    assert level.latency == chip.nearest.latency + channel.latency
    assert effective(effective(chip)) == effective(chip)
    narrow = load_chip("npu-edge-int8", [*LPDDR5, ("memory.dram.bandwidth", "20 GB/s")])
    assert effective(narrow).nearest.bandwidth == 20 * 10**9


def test_a_chip_without_dram_is_left_alone():
    chip = load_chip("npu-edge-int8")
    assert effective(chip) is chip


def test_bandwidth_may_be_left_out_and_is_then_the_pins(tmp_path):
    text = """
kind: chip
name: c
clock: 1 GHz
tile:
  kind: npu
  array: {rows: 16, cols: 16, dataflow: weight_stationary, load_rows: 4}
  scratchpad: {capacity: 256 KiB, banks: 16}
  accumulator: {capacity: 64 KiB}
  vector: {lanes: 16}
  dma: {bytes_per_cycle: 64}
memory:
  near: {kind: hbm2, capacity: 2 GiB, latency: 30 ns, ports: 2, dram: hbm2}
"""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    chip, dram = load_chip(str(path)), load_dram("hbm2")
    assert chip.nearest.dram == dram
    assert chip.nearest.bandwidth == 2 * int(dram.peak_bandwidth)
    path.write_text(text.replace(", dram: hbm2", ""))
    with pytest.raises(Exception, match="bandwidth is missing; only a level with dram may leave it out"):
        load_chip(str(path))


@pytest.mark.slow(seconds=1.5)
def test_a_simulation_shows_what_the_pins_move_and_what_streams_get(capsys):
    result = simulate("npu-edge-int8", "gpt2", LPDDR5 + SMALL).result()
    level = result["memory"]["levels"]["dram"]
    assert level["dram"] == "lpddr5"
    assert level["pin_bandwidth"] == 51_200_000_000
    assert 0.9 * level["pin_bandwidth"] < level["bandwidth"] < level["pin_bandwidth"]
    stated = simulate("npu-edge-int8", "gpt2", [*LPDDR5[1:], *SMALL]).result()
    assert "dram" not in stated["memory"]["levels"]["dram"]
    assert result["cycles"] > stated["cycles"]
    exact = simulate("npu-edge-int8", "gpt2", LPDDR5 + SMALL, exact=True).result()
    assert exact["cycles"] == result["cycles"]
    assert main(["sim", "npu-edge-int8", "gpt2", *as_arguments(LPDDR5 + SMALL)]) == 0
    assert "of lpddr5's pins" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_rtl_keeps_to_the_same_bandwidth(tmp_path):
    one = [("memory.dram.dram", "lpddr5"), ("memory.dram.capacity", "1 GiB"), ("memory.dram.bandwidth", "12 GB/s")]
    stated = effective(load_chip("npu-edge-int8", one))
    path = tmp_path / "out.json"
    assert main(["rtl", "npu-edge-int8", *as_arguments(one), "-o", str(tmp_path / "rtl"), "--json", str(path)]) == 0
    assert stated.digest in path.read_text()


BAD = [
    ([("memory.dram.dram", "lpddr6")], "lpddr6"),
    ([("memory.dram.dram", "lpddr5")], "capacity must be that of the ports' DRAM, 1 x 1 GiB = 1 GiB (got 8 GiB)"),
    ([*LPDDR5, ("memory.dram.bandwidth", "52 GB/s")], "bandwidth must be at most 51.2 GB/s, what the DRAM's pins move"),
    ([*LPDDR5, ("memory.dram.access_bytes", "16")], "access_bytes must be a multiple of the DRAM's burst of 32 bytes"),
]


@pytest.mark.parametrize(("sets", "words"), BAD, ids=[b[1] for b in BAD])
def test_bad_input_is_one_clear_line(tmp_path, capsys, sets, words):
    path = tmp_path / "out.json"
    assert main(["sim", "npu-edge-int8", "gpt2", *as_arguments(sets), "--json", str(path)]) == 2
    error = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("compiling")]
    assert words in error[0]
    assert "Traceback" not in " ".join(error)
    assert not path.exists()
