"""Products of a GPU whose weights are stored as codes, and those whose operands are four bits: what must hold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from siliconloom.arch.errors import DescriptionError, NotSupported
from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.names import gpu_names
from siliconloom.baselines.dequantization import unpacking_cycles
from siliconloom.baselines.model import kernels_of, predict_model
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.operations import PACKED_BESIDE, WeightFormat
from siliconloom.baselines.predict import Prediction, predict
from siliconloom.baselines.roofline import compulsory_bytes, least_seconds
from siliconloom.cli import app
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.workloads import load_workload

GPUS = {name: load_gpu(name) for name in gpu_names()}
cuda = st.sampled_from(sorted(name for name, gpu in GPUS.items() if gpu.integer))
width = st.integers(1, 16384)
products = st.fixed_dictionaries(
    {"op": st.just("gemm"), "m": width, "n": width, "k": width, "batch": st.integers(1, 8)}
)
PACKED = {"weights": "int4", "group": 128}
BITS = {"int4": 4, "int8": 8, "mxfp4": 4, "mxfp8": 8}
"""Of a code."""


@st.composite
def packings(draw):
    """A format of weights, rows of a group, and operands that a kernel makes of codes."""
    stored = draw(st.sampled_from([f for f in WeightFormat if f is not WeightFormat.OPERANDS]))
    group = 32 if stored.startswith("mx") else draw(st.sampled_from([0, 32, 128]))
    return {"weights": str(stored), "group": group, "dtype": str(draw(st.sampled_from(PACKED_BESIDE[stored])))}


def found(gpu, *rows, **options) -> Prediction:
    return predict(GPUS[gpu] if isinstance(gpu, str) else gpu, make_operations(rows), **options)


def seconds(gpu, row, **options):
    return float(found(gpu, row, **options).seconds[0])


@given(cuda, products, packings())
def test_packed_weights_are_no_faster_than_their_roofline_nor_slower_than_unpacking_alone(gpu, row, packing):
    made = make_operations([row | packing])
    packed = seconds(gpu, row | packing)
    assert least_seconds(made, GPUS[gpu])[0] <= packed * (1 + 1e-12)
    weights = -(-row["m"] // 256) * row["batch"] * row["n"] * row["k"]
    least = weights * unpacking_cycles(GPUS[gpu], made)[0] / (GPUS[gpu].multiprocessors * GPUS[gpu].clock)
    assert packed >= least * (1 - 1e-9)


@given(products, packings())
def test_codes_and_the_scales_of_their_groups_are_what_is_read(row, packing):
    read = make_operations([row | packing]).weight_bytes()[0]
    columns = row["batch"] * row["n"]
    groups = -(-row["k"] // packing["group"]) if packing["group"] else 1
    scale = 1 if packing["weights"].startswith("mx") else 2
    assert read == columns * (row["k"] * BITS[packing["weights"]] / 8 + groups * scale)


def test_a_weight_takes_the_bits_of_its_format():
    row = {"op": "gemm", "m": 1, "n": 1024, "k": 1024}
    eight = {"weights": "int8", "group": 32}
    made = make_operations([row | p for p in ({}, PACKED, eight, {"weights": "mxfp4"}, {"weights": "mxfp8"})])
    assert (8 * made.weight_bytes() / 2**20).tolist() == [16, 4.125, 8.5, 4.25, 8.25]
    assert (compulsory_bytes(made) - made.weight_bytes()).tolist() == [4 * 1024] * 5


@pytest.mark.parametrize("packing", [PACKED, {"weights": "mxfp4"}, {**PACKED, "dtype": "int8"}])
def test_a_slow_path_for_integers_binds_by_unpacking(packing):
    slow = GPUS["a100"].model_copy(update={"integer": 1})
    row = {"op": "gemm", "m": 16, "n": 8192, "k": 8192, "dtype": "fp16", **packing}
    assert found(slow, row).bound == ["dequantization"]
    assert found("a100", row).bound == ["memory"]
    assert seconds(slow, row) > 2.5 * seconds("a100", row)


def test_operands_of_eight_bits_take_fewer_instructions_and_less_time_than_those_of_sixteen():
    row = {"op": "gemm", "m": 2048, "n": 8192, "k": 8192, **PACKED}
    wide, narrow = (row | {"dtype": dtype} for dtype in ("fp16", "int8"))
    cycles = unpacking_cycles(GPUS["a100"], make_operations([wide, narrow]))
    assert cycles[1] == 3.5 / 64 / 4  # logic and multiply-adds alone, of four weights
    assert cycles[1] < cycles[0]
    assert 1.3 < seconds("a100", wide) / seconds("a100", narrow) < 2.1  # tensor cores are twice as fast


def test_units_for_four_bits_take_up_to_half_the_time_of_those_for_eight():
    row = {"op": "gemm", "m": 8192, "n": 8192, "k": 8192}
    eight, four = found("a100", row | {"dtype": "int8"}, row | {"dtype": "int4"}, quantized=True).seconds
    assert 1.5 < eight / four < 2.05
    made = make_operations([row | {"dtype": "int4"}])
    assert made.weight_bytes()[0] == 8192 * 8192 / 2
    assert found("a100", row | {"dtype": "int4"}).error[0] >= 0.2  # none was measured


@pytest.mark.parametrize("gpu", ["mi300x", "v100"])
@pytest.mark.parametrize("weights", ["int4", "mxfp4"])
def test_a_gpu_without_a_rate_for_unpacking_refuses_packed_weights(gpu, weights):
    with pytest.raises(NotSupported, match=f"weights in {weights} with fp16 operands on {gpu}, .* no integer"):
        found(gpu, {"op": "gemm", "m": 16, "n": 256, "k": 256, "dtype": "fp16", "weights": weights})


def test_products_with_packed_weights_carry_an_error_of_their_own():
    rows = [{"op": "gemm", "m": 16, "n": 4096, "k": 4096} | p for p in ({}, PACKED, {"weights": "mxfp4"})]
    dense, *packed = found("h100", *rows).error.tolist()
    assert dense < 0.1
    assert packed == pytest.approx([0.6, 0.6])
    assert found("a10", *rows).error[1] >= 0.2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"weights": "int8", "dtype": "int8"}, "weights packed in int8 have operands in fp16 or bf16 (got 'int8')"),
        ({"weights": "int4", "dtype": "fp8"}, "packed in int4 have operands in fp16, bf16 or int8 (got 'fp8')"),
        ({"weights": "mxfp4", "dtype": "int8"}, "packed in mxfp4 have operands in fp16 or bf16 (got 'int8')"),
        ({"weights": "mxfp4", "group": 64}, "group: an MX block has 32 rows (got 64)"),
    ],
)
def test_a_format_that_no_kernel_unpacks_is_refused(row, message):
    with pytest.raises(DescriptionError) as refused:
        make_operations([{"op": "gemm", "m": 64, "n": 64, "k": 64} | row])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("precision", "product", "attention"),
    [
        ("mxfp4", {"dtype": "bf16", "weights": "mxfp4", "group": 32}, {"dtype": "bf16"}),
        ("mxfp8", {"dtype": "bf16", "weights": "mxfp8", "group": 32}, {"dtype": "bf16"}),
        ("w4a8", {"dtype": "int8", "weights": "int4", "group": 128}, {"dtype": "int8"}),
    ],
)
def test_a_workload_has_the_kernels_of_its_precision(precision, product, attention):
    sets = [("phase", "decode"), ("context", "1024"), ("layers", "1"), ("precision", precision)]
    graph = load_workload("llama3-8b", sets)
    rows = {kernel.operator: kernel.row for kernel in kernels_of(graph)}
    assert product.items() <= rows["layer.qkv"].items()
    assert attention.items() <= rows["layer.attention"].items()
    parts = predict_model(GPUS["a100"], graph)
    assert (parts.seconds >= parts.roofline).all()


@pytest.mark.parametrize("sets", [[("phase", "decode"), ("context", "64")], [("sequence", "64")]])
def test_of_a_model_in_four_bits_products_alone_are_timed(sets):
    """Norms, attention, messages and the table of tokens have 16 bits there, which no precision says."""
    graph = load_workload("llama3-8b", [*sets, ("layers", "1"), ("precision", "w4a4")])
    with pytest.raises(NotSupported, match="in int4 on a GPU; loom gpu times products alone"):
        predict_model(GPUS["a100"], graph)
    for op in ("add", "attention_decode", "all_reduce"):
        with pytest.raises(DescriptionError, match=f"int4 is of products, not of {op}"):
            make_operations(
                [
                    {
                        "op": op,
                        "dtype": "int4",
                        **dict.fromkeys(("m", "n", "kv_len", "heads", "bytes"), 64),
                        "head_dim": 64,
                        "gpus": 2,
                    }
                ]
            )


@pytest.mark.slow(seconds=1.5)
@given(st.sampled_from(["qkv", "output", "gate_up"]), st.sampled_from(["fp8_e4m3", "int8"]), st.integers(1, 4))
def test_a_step_in_several_formats_has_a_floor_of_each_kernels_own_peak(name, narrow, layers):
    some = [("operator_precision", f"{{'*.{name}': {narrow}, '*.down': {narrow}}}")]
    sets = [("sequence", "2048"), ("layers", str(layers))]
    graphs = [load_workload("llama3-8b", given) for given in (sets, [*sets, *some])]
    whole, mixed = (evaluate(read_machine("h100", []), graph).result for graph in graphs)
    floors = [result["bound"]["lower_bound_s"] for result in (whole, mixed)]
    gpu = GPUS["h100"]
    peaks = {"bf16": gpu.peak_flops("bf16"), "int8": gpu.peak_flops("int8"), "fp8_e4m3": gpu.peak_flops("fp8")}
    least = sum(2 * o.macs * o.repeat / peaks[o.precision.value] for o in graphs[1].operators())
    assert least * (1 - 1e-6) <= floors[1] < floors[0]
    assert mixed["seconds"] >= floors[1]


def test_a_model_whose_products_are_narrow_is_not_held_to_the_peak_of_the_rest():
    """It was: 29.2 ms of a prompt of 2,048 tokens were below 30.0 ms, the arithmetic at the peak of bf16."""
    narrow = ", ".join(f"'*.{name}': fp8_e4m3" for name in ("qkv", "output", "gate_up", "down"))
    graph = load_workload("llama3-8b", [("sequence", "2048"), ("operator_precision", f"{{{narrow}}}")])
    result = evaluate(read_machine("h100", []), graph).result
    assert result["seconds"] < 2 * graph.macs / GPUS["h100"].peak_flops("bf16")


@pytest.mark.parametrize(("precision", "times"), [("fp8", 2), ("int8", 2), ("w4a8", 2), ("mxfp4", 1)])
def test_a_plan_has_the_arithmetic_of_its_formats_as_its_floor(precision, times):
    sets = ["plan.tensor=4", "workload.layers=2", "workload.sequence=512"]
    floors = []
    for each in (precision, "bf16"):
        given = [f"--set={key}" for key in (*sets, f"workload.precision={each}")]
        done = CliRunner().invoke(app, ["plan", "dgx-h100", "llama3-8b", *given, "--json", "-"])
        found = json.loads(done.stdout)
        assert found["step_s"] > found["lower_bound_s"] > 0
        floors.append(found["lower_bound_s"])
    assert floors[1] / floors[0] == pytest.approx(times)
