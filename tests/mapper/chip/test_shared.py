"""W4A4, W8A8, W16A16 and fp8 on arrays between elements in fp32: what is mapped, what it takes, what is refused."""

import numpy as np
import pytest

from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.technology import TECHNOLOGIES
from siliconloom.baselines.model import kernels_of
from siliconloom.evaluate.hardware import hardware_of
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.sim.chip.energy import energy, standing_power
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.sim.chip.tables import Counter
from siliconloom.sim.timing.systolic import gemm_run
from siliconloom.workloads import Gemm, load_workload

SMALL = [("layers", "1"), ("sequence", "16")]


def graph_in(*sets):
    return load_workload("gpt2", [*SMALL, *sets])


NAMES = {DataType.INT4: "w4a4", DataType.INT8: "w8a8", DataType.INT16: "w16a16"}
NAMES |= {DataType.FP8_E4M3: "fp8", DataType.FP8_E5M2: "fp8_e5m2"}
FORMATS = pytest.mark.parametrize("dtype", NAMES)


def chip_in(dtype, *sets):
    return load_chip("npu-edge-w8a8", [("tile.array.operands", f"[{dtype.value}]"), *sets])


@FORMATS
@pytest.mark.parametrize("stated", ["nothing", "format", "name"])
def test_weights_are_operands_and_all_else_is_fp32(stated, dtype):
    chip = chip_in(dtype)
    sets = {"nothing": [], "format": [("precision", dtype.value)], "name": [("precision", NAMES[dtype])]}[stated]
    fitted, notes = fit_precision(chip, graph_in(*sets))
    assert {o.precision for o in fitted.operators()} == {DataType.FP32}
    assert {o.packing for o in fitted.operators() if isinstance(o, Gemm) and o.weight} == {Packing(dtype, 0)}
    assert notes[-1] == f"npu-edge-w8a8 multiplies in {dtype.value}; all else is in fp32"


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("dtype", [DataType.INT4, DataType.INT16])
def test_weights_take_as_many_bytes_as_they_have_bits(dtype):
    """Two of int4 lie in a byte: what is read of memory, and what an image of it is large."""

    def read(of):
        chip = chip_in(of)
        mapped = map_workload(chip, graph_in(), Stopwatch(chip), search=False)
        assert mapped.memory is not None
        items = [item for _, item in mapped.memory.objects()]
        names = {o.name for o in mapped.graph.operators() if isinstance(o, Gemm) and o.weight}
        return sum(item.size for item in items if item.role == "parameters" and item.operator in names)

    parts = read(dtype), read(DataType.INT8)
    assert abs(parts[0] / parts[1] - dtype.bits / 8) < 0.001


@pytest.mark.slow(seconds=1)
@FORMATS
def test_a_whole_model_is_proven(dtype):
    chip = chip_in(dtype)
    mapped = map_workload(chip, graph_in(), Stopwatch(chip), search=False)
    assert set(hardware_of(chip, mapped.program, [None] * len(mapped.program.operators))) == {None}


def test_a_product_takes_the_cycles_of_int8():
    """Nothing is looked at before it enters: neither rows that move nor folds that stay."""
    array = load_chip("npu-edge-w8a8").tile.array
    assert gemm_run(array, 30, 40, 50, Packing(DataType.INT8, 0)) == gemm_run(array, 30, 40, 50)


@FORMATS
def test_multiplications_take_the_energy_of_operands_and_vectors_that_of_fp32(dtype):
    chip, narrow = chip_in(dtype), load_chip("npu-edge-int8", [("tile.array.operands", f"[{dtype.value}]")])
    counters = np.zeros(len(Counter), np.int64)
    counters[Counter.MACS], counters[Counter.VECTOR_SLOTS] = 1000, 10
    spent = energy(chip, DataType.FP32, counters, np.zeros((1, 2), np.int64))
    technology = TECHNOLOGIES[chip.technology]
    assert spent["array"] == 1000 * technology.mac(dtype)
    assert spent["vector"] == 10 * technology.mac(DataType.FP32)
    wider = chip_in(dtype, ("tile.scratchpad.capacity", "256 KiB"))
    power = standing_power(wider)["clock"], standing_power(narrow)["clock"]
    assert (power[0] > power[1]) == dtype.is_integer  # sums of floating point are fp32, whatever its elements


@pytest.mark.slow(seconds=1)
def test_weights_in_int4_have_groups():
    """W4A8: all products but the head's, which has int8 and a scale for each column."""
    chip = load_chip("npu-edge-w4a8")
    fitted, _ = fit_precision(chip, graph_in(("precision", "w4a8"), ("weight_group", "32")))
    packings = {o.name: o.packing for o in fitted.operators() if isinstance(o, Gemm) and o.weight}
    assert packings.pop("head") == Packing(DataType.INT8, 0)
    assert set(packings.values()) == {Packing(DataType.INT4, 32)}
    assert {o.precision for o in fitted.operators()} == {DataType.FP32}
    mapped = map_workload(chip, graph_in(("precision", "w4a8"), ("weight_group", "32")), Stopwatch(chip), search=False)
    assert set(hardware_of(chip, mapped.program, [None] * len(mapped.program.operators))) == {None}


@pytest.mark.parametrize(
    ("precision", "error", "rule"),
    [
        ("w8a16", NotSupported, "weights in int8 in groups; those of npu-edge-w8a8 have a scale for each column"),
        ("w4a16", NotSupported, "weights packed in int4; those of npu-edge-w8a8 are int8"),
        ("mxfp4", NotSupported, "weights packed in fp4_e2m1"),
        (
            "bf16",
            LoomError,
            "bf16 operands are not among those of npu-edge-w8a8 .int8.; set workload.precision to int8$",
        ),
    ],
)
def test_other_formats_are_refused(precision, error, rule):
    with pytest.raises(error, match=rule):
        fit_precision(load_chip("npu-edge-w8a8"), graph_in(("precision", precision)))


@pytest.mark.parametrize(
    ("sets", "rule"),
    [
        (
            [("tile.array.operands", "[int32]")],
            "elements are made to operands in int4, int8, int16, bf16, fp16, fp8_e4m3, fp8_e5m2 .got 'int32'",
        ),
        (
            [("tile.array.operands", "[int4]"), ("tile.array.cols", "3"), ("tile.array.load_rows", "1")],
            "array.cols: a beat of weights in int4 has an even number of values .got '3'",
        ),
        (
            [("tile.array.operands", "[int16]"), ("tile.array.weights", "{formats: [int4]}")],
            "packed weights are made to operands in int8, bf16 or fp16 .got 'int16'",
        ),
        ([("tile.array.weights", "{formats: [int8]}")], "an array in int8 has int4 packed, and int8 as it is"),
        (
            [("tile.array.weights", "{formats: [int4]}"), ("tile.vector.format", "null")],
            "packed weights before an array in int8 are for elements in fp32",
        ),
        (
            [("tile.array.dataflow", "input_stationary")],
            "elements wider than operands are for weight stationary arrays",
        ),
    ],
)
def test_what_is_described_must_be_a_circuit(sets, rule):
    with pytest.raises(LoomError, match=rule):
        load_chip("npu-edge-w8a8", sets)


def test_an_array_in_bf16_does_not_take_activations_in_int8_for_its_own():
    """What W4A8 says of activations is stated: nothing computes them in bf16 instead."""
    fitted, _ = fit_precision(load_chip("npu-edge"), graph_in(("precision", "w4a8"), ("weight_group", "32")))
    assert {o.precision for o in fitted.operators()} == {DataType.INT8}
    rows = [kernel.row for kernel in kernels_of(graph_in(("precision", "w4a8"), ("weight_group", "32")))]
    assert {row["dtype"] for row in rows if row["op"] == "gemm"} == {"int8"}
