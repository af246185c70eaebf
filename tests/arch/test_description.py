import re
from pathlib import Path

import pytest

from siliconloom import arch
from siliconloom.arch import DataType, DescriptionError, LoomError, SystolicArray, chip_names, load_chip, load_system
from siliconloom.arch.dram import DramCells, load_dram
from siliconloom.arch.isa import Address, Instruction, decode, encode
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.pim import CHANNEL_MAPPING
from siliconloom.evaluate.schemas import schema_of

CONTRACT = [
    "npu-edge-int8",
    "npu-datacenter",
    "tpu-v4",
    "gemmini-16",
    *(f"systolic-{dataflow}-{size}" for dataflow in ("ws", "os", "is") for size in (8, 32, 128)),
]


@pytest.mark.parametrize("name", CONTRACT)
def test_the_library_holds_the_promised_chips(name):
    chip = load_chip(name)
    assert chip.name == name
    assert chip.peak_macs > 0


def test_the_library_holds_nothing_unnamed():
    assert {load_chip(name).name for name in chip_names()} == set(chip_names())


def test_published_peaks():
    assert load_chip("npu-edge-int8").tile.scratchpad.capacity == 256 * 1024
    assert load_chip("npu-datacenter").tile.scratchpad.capacity == 32 * 2**20
    v4 = load_chip("tpu-v4")
    assert 2 * v4.peak_macs * v4.clock == pytest.approx(275e12, rel=0.01)
    assert 2 * load_chip("gemmini-16").peak_macs == 512


def test_bare_tiles_take_rows_and_cols():
    chip = load_chip("systolic-os-8", [("tile.array.rows", "5"), ("tile.array.cols", "3")])
    assert (chip.tile.array.rows, chip.tile.array.cols, chip.memory) == (5, 3, {})


def test_the_digest_follows_the_meaning_not_the_text():
    same = load_chip("npu-edge-int8", [("clock", "1000 MHz")])
    assert same.digest == load_chip("npu-edge-int8").digest
    assert load_chip("npu-edge-int8", [("clock", "999 MHz")]).digest != same.digest


@pytest.mark.parametrize(
    ("operands", "accepted", "refused"),
    [
        (["int8"], ["int8", "int4"], ["bf16", "int16"]),
        (["bf16", "int8"], ["bf16", "int8", "int4"], ["fp32"]),
        (["int4"], ["int4"], ["int8"]),
    ],
)
def test_an_array_accepts_formats_that_fit_its_lanes(operands, accepted, refused):
    array = SystolicArray(rows=4, cols=4, dataflow="weight_stationary", operands=operands)
    assert all(array.accepts(DataType(name)) for name in accepted)
    assert not any(array.accepts(DataType(name)) for name in refused)


def test_an_npu_needs_memory(tmp_path):
    text = (
        "kind: chip\nname: x\nclock: 1 GHz\ntile:\n  kind: npu\n"
        "  array: {rows: 4, cols: 4, dataflow: weight_stationary}\n"
        "  scratchpad: {capacity: 1 KiB}\n  accumulator: {capacity: 1 KiB}\n  vector: {lanes: 4}\n"
    )
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(DescriptionError, match="needs at least one memory level"):
        load_chip(str(path))


@pytest.mark.parametrize("memory", ["scratchpad", "accumulator"])
def test_a_memory_that_local_addresses_do_not_reach_is_refused_where_it_is_said(memory, tmp_path):
    key = f"tile.{memory}.capacity"
    whole = getattr(load_chip("npu-edge-int8", [(key, "256 MiB")]).tile, memory).capacity
    last = Instruction(opcode=Opcode.LOAD, m=1, n=1, a=Address(base=whole - 1))
    assert decode(encode(last)).a.base == whole - 1
    with pytest.raises(LoomError):
        encode(Instruction(opcode=Opcode.LOAD, m=1, n=1, a=Address(base=whole)))
    rule = "must be at most 256 MiB: local addresses of programs have 28 bits"
    with pytest.raises(DescriptionError, match=rf"--set {key}=512MiB: {key}: {rule} \(got '512 MiB'\)"):
        load_chip("npu-edge-int8", [(key, "512MiB")])
    text = Path(arch.__file__).with_name("library").joinpath("npu-edge-int8.yaml").read_text()
    path = tmp_path / "x.yaml"
    path.write_text(re.sub(rf"({memory}: {{capacity: )[^,}}]*", r"\g<1>1 GiB", text))
    with pytest.raises(DescriptionError, match=rf"x.yaml:\d+:\d+: {key}: {rule} \(got '1 GiB'\)"):
        load_chip(str(path))


def test_a_system_and_a_pim_tile_can_be_described(tmp_path):
    system = tmp_path / "pod.yaml"
    system.write_text(
        "kind: system\nname: pod\nchips: [{chip: tpu-v4, count: 64}]\ntopology: {kind: torus, shape: [4, 4, 4]}\n"
        "link: {bandwidth: 50 GB/s, latency: 500 ns}\n"
    )
    assert load_system(str(system)).topology.shape == (4, 4, 4)
    pim = tmp_path / "pim.yaml"
    pim.write_text(
        "kind: chip\nname: pim\nclock: 1 GHz\ntile:\n  kind: pim\n  dram: hbm2\n  channels: 8\n  lanes: 16\n"
        "  global_buffer: 2 KiB\n"
    )
    chip = load_chip(str(pim))
    assert chip.peak_macs == 8 * chip.tile.banks * 16
    assert load_chip("pim-hbm").peak_macs == 16 * 16


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("tile.global_buffer", "100 B", "global_buffer must be a multiple of a burst of 32 bytes"),
        ("tile.lanes", "12", "lanes must be a power of two"),
        ("tile.operands", "[fp8]", "operands must be among bf16, fp16 and int8"),
        ("tile.activate_group", "3", "tile.activate_group"),
        ("tile.dram.organization.channels", "2", "describes one channel"),
        ("tile.dram.timing.tRAS", "3", "tRAS must be at least tRCD"),
        ("tile.dram.mapping", "rorabacochbg", "addressed by row, bank and burst of the row: rorabgbacoch"),
        ("tile.dram.xor", "[ba^ro0]", "nothing is mixed into their number"),
        ("tile.dram.controller.scheduler", "fcfs", "no queue of requests"),
        ("tile.dram.controller.two_comands", "true", "valid keys: refresh"),
    ],
)
def test_a_pim_tile_that_contradicts_itself_is_refused(key, value, told):
    with pytest.raises(DescriptionError, match=told):
        load_chip("pim-hbm", [(key, value)])


def test_a_channel_that_computes_takes_the_cells_of_a_named_memory():
    """Its controller and mapping are for requests; of those it takes the refresh alone."""
    for name in ("hbm2", "hbm2e"):
        whole, clock = load_dram(name), 10**12 / load_dram(name).clock_period
        cells = load_chip("pim-hbm", [("tile.dram", name), ("clock", f"{clock} Hz")]).tile.dram
        assert {key: getattr(cells, key) for key in DramCells.model_fields} == {
            key: getattr(whole, key) for key in DramCells.model_fields
        }
        assert cells.mapping == CHANNEL_MAPPING
        assert cells.controller.refresh == whole.controller.refresh
    assert load_chip("pim-hbm", [("tile.dram.name", "other")]).tile.dram.name == "other"


def test_durations_become_whole_cycles_rounded_up():
    chip = load_chip("npu-datacenter")
    assert chip.cycles(1) == 1
    assert chip.cycles(120_000) == 144


@pytest.mark.parametrize("kind", ["chip", "system", "workload", "mapping"])
def test_schemas_name_their_keys(kind):
    made = schema_of(kind)
    assert made["$schema"].startswith("https://json-schema.org")
    assert "properties" in made or "oneOf" in made or "anyOf" in made
