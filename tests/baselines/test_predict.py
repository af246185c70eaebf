"""The GPU model: what must hold of every prediction, whatever its constants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.names import gpu_names
from siliconloom.baselines import attention, collective, gemm
from siliconloom.baselines.attention_backward import BLOCKS
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.lookup import measured
from siliconloom.baselines.mechanism import _prefill, mechanism
from siliconloom.baselines.model import kernels_of, predict_model
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.operations import PRECISIONS
from siliconloom.baselines.predict import Prediction, predict
from siliconloom.baselines.residuals import NO_FIELDS
from siliconloom.baselines.roofline import compulsory_bytes, flops, least_seconds, link_bytes
from siliconloom.workloads import load_workload

GPUS = {name: load_gpu(name) for name in gpu_names()}
BOUNDS = {*gemm.BOUNDS, *attention.BOUNDS, *collective.BOUNDS}
TOWARDS_ROWS = 0.5
"""Likewise where the larger product is nearer to measured rows: these correct the mechanism, which takes products of a
few microseconds for up to two thirds longer than they are, and what is far from them has no correction."""
STEP, SPLIT = 0.9, 0.8
"""Larger work may take these shares of the time of smaller: a longer k allows another split of a product; of one
sequence the library cuts the keys into more parts than of two, and joining them takes longer."""

gpus = st.sampled_from(sorted(GPUS))
width = st.integers(1, 16384)
products = st.fixed_dictionaries(
    {"op": st.just("gemm"), "m": width, "n": width, "k": width, "batch": st.integers(1, 8), "dtype": st.just("fp16")}
)


@st.composite
def attentions(draw):
    op, kv_heads = draw(st.sampled_from(["attention_prefill", "attention_decode"])), draw(st.sampled_from([1, 2, 8]))
    queries = draw(st.integers(1, 8192)) if op == "attention_prefill" else 1
    return {
        "op": op,
        "batch": draw(st.integers(1, 64)),
        "q_len": queries,
        "kv_len": queries + draw(st.integers(0, 16384)),
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.sampled_from([1, 4, 8])),
        "head_dim": draw(st.sampled_from([64, 128, 192, 256])),
        "dtype": "fp16",
    }


collectives = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
        "gpus": st.integers(2, 64),
        "bytes": st.integers(1, 2**34),
        "dtype": st.just("fp16"),
    }
)
elementwise = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["rmsnorm", "softmax", "silu_mul", "add", "rope"]),
        "m": width,
        "n": width,
        "dtype": st.just("fp16"),
    }
)
kernels = products | attentions() | collectives | elementwise


def found(gpu, *rows, **options) -> Prediction:
    return predict(GPUS[gpu] if isinstance(gpu, str) else gpu, make_operations(rows), **options)


def seconds(gpu, row, **options):
    return float(found(gpu, row, **options).seconds[0])


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Numba's first call of each kernel must not count as the time of an example."""
    sizes = {"heads": 8, "head_dim": 64, "kv_len": 64}
    found(
        "h100",
        {"op": "gemm", "m": 8, "n": 8, "k": 8},
        {"op": "all_reduce", "gpus": 2, "bytes": 8},
        {"op": "attention_prefill", **sizes},
        {"op": "attention_decode", **sizes},
    )


@given(gpus, st.lists(kernels, min_size=1, max_size=8), st.booleans())
def test_no_kernel_is_faster_than_its_roofline(gpu, rows, sustained):
    made = found(gpu, *rows, sustained=sustained)
    floor = least_seconds(make_operations(rows), GPUS[gpu])
    assert (made.seconds >= floor * (1 - 1e-12)).all()
    assert np.array_equal(made.roofline, floor)
    assert (made.joules > 0).all()
    assert np.isfinite(made.seconds).all()
    assert (made.error > 0).all()
    assert (made.error_90 >= made.error).all()
    assert {*made.bound} <= BOUNDS


@given(gpus, collectives)
def test_no_collective_is_faster_than_its_links(gpu, row):
    least = float(link_bytes(make_operations([row]))[0]) / GPUS[gpu].link_bandwidth
    assert seconds(gpu, row) >= least


@given(gpus, products, st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 4096))
def test_a_larger_product_takes_no_less(gpu, row, side, more):
    rows = make_operations([row, row | {side: row[side] + more}])
    alone = mechanism(GPUS[gpu], rows).seconds
    assert alone[1] >= STEP * alone[0]
    assert seconds(gpu, row | {side: row[side] + more}) >= TOWARDS_ROWS * seconds(gpu, row)


@given(gpus, attentions(), st.sampled_from(["batch", "kv_len"]), st.integers(1, 4096))
def test_more_sequences_or_keys_take_no_less(gpu, row, side, more):
    assert seconds(gpu, row | {side: row[side] + more}) >= SPLIT * seconds(gpu, row)


@given(gpus, collectives, st.integers(1, 2**30))
def test_more_bytes_take_no_less(gpu, row, more):
    assert seconds(gpu, row | {"bytes": row["bytes"] + more}) >= seconds(gpu, row) * (1 - 1e-9)


@given(gpus, kernels)
def test_twice_the_memory_bandwidth_never_slows(gpu, row):
    described = GPUS[gpu]
    faster = described.model_copy(
        update={"memory": described.memory.model_copy(update={"bandwidth": 2 * described.memory.bandwidth})}
    )
    assert seconds(faster, row) <= seconds(gpu, row) * (1 + 1e-12)


@given(gpus, kernels)
def test_a_sustained_run_is_never_faster_than_a_burst(gpu, row):
    assert seconds(gpu, row, sustained=True) >= seconds(gpu, row)


@pytest.mark.slow(seconds=1.5)
@given(gpus, st.lists(kernels, min_size=2, max_size=12))
def test_a_table_is_predicted_as_its_rows_are(gpu, rows):
    whole = found(gpu, *rows)
    alone = [found(gpu, row) for row in rows]
    assert whole.seconds.tolist() == [float(one.seconds[0]) for one in alone]
    assert whole.joules.tolist() == [float(one.joules[0]) for one in alone]
    assert whole.bound == [one.bound[0] for one in alone]


@pytest.mark.slow(seconds=1)
@given(products)
def test_launches_alone_and_rounding_of_activations_cost_time(row):
    assert seconds("h100", row, graph=False) > seconds("h100", row)
    narrow = row | {"dtype": "fp8"}
    assert seconds("h100", narrow, quantized=True) <= seconds("h100", narrow)


def test_writing_the_cache_costs_time():
    row = {"op": "attention_prefill", "batch": 4, "q_len": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128}
    assert seconds("h100", row) > seconds("h100", row, cache_write=False)


def test_energy_is_within_the_board_limit_and_above_idle():
    for name, gpu in GPUS.items():
        made = found(name, {"op": "gemm", "m": 8192, "n": 8192, "k": 8192, "dtype": "fp16"}, sustained=True)
        power = float(made.joules[0] / made.seconds[0])
        assert gpu.idle_power < power <= gpu.power * (1 + 1e-9)


@pytest.mark.parametrize(("gpu", "dtype", "has"), [("a100", "fp8", "int8"), ("v100", "bf16", "fp16")])
def test_a_precision_without_units_is_refused_with_those_there_are(gpu, dtype, has):
    with pytest.raises(LoomError, match=f"{gpu}: no units for {dtype}; it has .*{has}"):
        found(gpu, {"op": "gemm", "m": 8, "n": 8, "k": 8, "dtype": dtype})


def test_every_precision_is_either_predicted_or_refused():
    for gpu in GPUS.values():
        for dtype in map(str, PRECISIONS):
            row = {"op": "gemm", "m": 64, "n": 64, "k": 64, "dtype": dtype}
            if gpu.peak_flops(dtype):
                assert seconds(gpu.name, row) > 0
            else:
                with pytest.raises(LoomError, match="no units"):
                    seconds(gpu.name, row)


def test_what_no_kernel_does_is_refused():
    with pytest.raises(NotSupported, match="heads of 512"):
        seconds("h100", {"op": "attention_decode", "kv_len": 8, "heads": 8, "head_dim": 512})
    with pytest.raises(NotSupported, match="no kernel"):
        seconds("h100", {"op": "prefill", "batch": 1})


def test_an_unknown_gpu_has_the_nearest_name():
    with pytest.raises(LoomError, match="did you mean 'h100'"):
        load_gpu("hh100")
    assert load_gpu("H100").name == "h100"


@given(
    st.sampled_from([64, 128]),
    st.sampled_from([512, 1024, 4096]),
    st.integers(1, 16),
    st.booleans(),
    st.integers(1, 32),
)
def test_backward_attention_takes_longer_than_forward_and_respects_its_arithmetic(head, length, batch, causal, heads):
    gpu = GPUS["a100"]
    row = {
        "op": "attention_prefill",
        "batch": batch,
        "q_len": length,
        "heads": heads,
        "head_dim": head,
        "causal": str(causal).lower(),
    }
    back = seconds("a100", row | {"op": "attention_backward"})
    assert back > seconds("a100", row, cache_write=False)
    flops = 2.5 * 4 * batch * heads * length**2 * head / (2 if causal else 1)
    assert back > flops / gpu.peak_flops("bf16")


@pytest.mark.slow(seconds=1)
@given(st.sampled_from(["add", "silu_mul", "rmsnorm", "layernorm", "gelu"]), st.integers(16, 14336))
def test_operands_that_fit_the_last_cache_do_not_come_from_memory(op, columns):
    gpu = GPUS["h100"]
    each = compulsory_bytes(make_operations([{"op": op, "m": 1, "n": columns}]))[0]
    for share, within in ((0.3, True), (3.0, False)):
        rows = int(share * gpu.l2_bytes / each)
        row = make_operations([{"op": op, "m": rows, "n": columns}])
        slower = predict(gpu.model_copy(update={"memory": halved(gpu)}), row, fields=NO_FIELDS).seconds[0]
        usual = predict(gpu, row, fields=NO_FIELDS).seconds[0]
        assert slower == pytest.approx(usual, rel=0.01) if within else slower > 1.15 * usual


def halved(gpu):
    return gpu.memory.model_copy(update={"bandwidth": gpu.memory.bandwidth / 2})


@pytest.mark.slow(seconds=1)
@given(st.sampled_from(["rmsnorm", "layernorm", "softmax"]), st.integers(1, 64), st.integers(1, 16000))
def test_a_row_is_one_blocks_and_takes_as_long_as_its_columns(op, rows, columns):
    alone = seconds("h100", {"op": op, "m": 1, "n": columns}, fields=NO_FIELDS)
    assert seconds("h100", {"op": op, "m": rows, "n": columns}, fields=NO_FIELDS) >= alone
    longer = seconds("h100", {"op": op, "m": 1, "n": 2 * columns}, fields=NO_FIELDS)
    added = load_efficiency("hopper").elementwise.by_kind("columns_", [op], 0.0)[0] * columns / GPUS["h100"].clock
    assert longer - alone >= added * (1 - 1e-9)


def test_attention_is_that_of_the_program_that_is_asked_for():
    long = {"op": "attention_prefill", "q_len": 8192, "heads": 32, "head_dim": 128, "batch": 1}
    usual, flash, cudnn = (seconds("h100", long, software=s) for s in ("", "torch-flash", "torch-cudnn"))
    assert flash > 1.5 * usual
    assert cudnn < 1.2 * usual
    assert seconds("a100", long, software="torch-flash", fields=NO_FIELDS) == seconds("a100", long, fields=NO_FIELDS)
    backward = long | {"op": "attention_backward"}
    assert seconds("h100", backward, software="torch-flash") > 1.4 * seconds("h100", backward)


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 640), st.integers(0, 16384), st.sampled_from([64, 128]))
def test_keys_of_few_blocks_of_queries_are_split_only_where_multiprocessors_would_idle(batch, heads, new, before, head):
    row = {"op": "attention_prefill", "batch": batch, "q_len": new, "kv_len": new + before, "heads": heads}
    row |= {"head_dim": head, "dtype": "bf16"}
    efficiency = load_efficiency("hopper").by_program("torch-flash")
    split, whole = (
        _prefill(GPUS["h100"], efficiency.model_copy(update={"splits": s}), make_operations([row]), False)[0][0]
        for s in (True, False)
    )
    if batch * heads * -(-new // 64) >= 0.8 * 2 * GPUS["h100"].multiprocessors:
        assert split == whole
    if before >= 8192 and batch * heads <= 16 and new <= 128:
        assert split < 0.5 * whole


@given(
    st.sampled_from(["a100", "h100", "b200"]),
    st.sampled_from([64, 96, 128]),
    st.sampled_from([512, 2048]),
    st.sampled_from([1, 4]),
)
@settings(max_examples=20)
def test_training_has_attentions_backward_pass_as_one_kernel(gpu, head, tokens, grouped):
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 8 // grouped, "head_dim": head, "num_hidden_layers": 1}
    sets = [("phase", "training"), ("sequence", str(tokens)), ("batch", "2")]
    graph = load_workload("llama3-8b", [*sets, *((f"model.{name}", str(size)) for name, size in sizes.items())])
    parts = predict_model(GPUS[gpu], graph).by_operator
    both = parts["layer.attention.values_gradient"] + parts["layer.attention.keys_gradient"]
    row = {"op": "attention_backward", "batch": 2, "q_len": tokens, "heads": 8, "kv_heads": 8 // grouped}
    whole = seconds(gpu, row | {"head_dim": head}, sustained=True, cache_write=False)
    assert both == pytest.approx(whole, rel=1e-6)
    assert parts["layer.attention.keys_gradient"] == pytest.approx(0.6 * whole, rel=1e-6)


def test_a_sum_that_a_norm_takes_along_reads_one_more_operand_at_least():
    sets = [("phase", "decode"), ("batch", "16"), ("context", "2048"), ("model.num_hidden_layers", "2")]
    parts = predict_model(GPUS["h100"], load_workload("llama3-8b", sets)).by_operator
    assert parts["layer.attention_add"] >= 16 * 4096 * 2 / GPUS["h100"].memory_bandwidth * (1 - 1e-9)


def test_what_stands_beside_a_prediction_is_timed_of_kernels_that_serving_software_has():
    rows = [{"op": "rmsnorm", "m": 16, "n": 4096}, {"op": "attention_prefill", "q_len": 8192, "heads": 32, "batch": 1}]
    made = make_operations([rows[0], rows[1] | {"kv_heads": 8, "head_dim": 128}])
    for time in measured("h100", made):
        assert time is not None
        assert not any(name.endswith(("eager", "flash", "cudnn")) for name in time.sources)


def test_training_with_heads_of_no_known_backward_kernel_has_attention_of_the_forward_pass():
    sizes = [("model.head_dim", "256"), ("model.num_hidden_layers", "1"), ("phase", "training"), ("sequence", "1024")]
    found = predict_model(GPUS["h100"], load_workload("llama3-8b", sizes))
    assert {k.row["op"] for k in found.kernels if "attention" in k.row["op"]} == {"attention_prefill"}


def test_backward_attention_is_only_of_kernels_that_are_known():
    row = {"op": "attention_backward", "batch": 1, "q_len": 512, "heads": 8, "head_dim": 128}
    assert seconds("a100", row) > 0
    with pytest.raises(NotSupported, match="heads of 256"):
        seconds("a100", row | {"head_dim": 256})
    with pytest.raises(NotSupported, match="other formats"):
        seconds("h100", row | {"dtype": "fp8"})
    assert BLOCKS[64].shared_bytes(64) == 640 * 1024  # the sum worked out by hand from the warps' layouts
    assert BLOCKS[128].shared_bytes(128) == 608 * 1024


cuda = st.sampled_from(sorted(name for name, gpu in GPUS.items() if gpu.integer))


@given(cuda, products, st.sampled_from(["fp16", "int8"]))
def test_sparse_weights_keep_half_and_take_no_less_than_their_roofline(gpu, row, dtype):
    sparse = row | {"dtype": dtype, "sparsity": "2of4"}
    made = make_operations([row | {"dtype": dtype}, sparse])
    dense_flops, kept_flops = flops(made).tolist()
    assert kept_flops * 2 == dense_flops
    size = 1 if dtype == "int8" else 2
    assert made.weight_bytes()[1] == made.weight_bytes()[0] * (0.5 + 0.125 / size)
    assert seconds(gpu, sparse) >= least_seconds(make_operations([sparse]), GPUS[gpu])[0] * (1 - 1e-12)


def test_sparse_weights_take_up_to_half_the_time_where_arithmetic_binds():
    row = {"op": "gemm", "m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"}
    dense, sparse = found("a100", row, row | {"sparsity": "2of4"}, fields=NO_FIELDS).seconds.tolist()
    assert 0.5 < sparse / dense < 0.7
    same = GPUS["a100"].model_copy(update={"sparse": 1})
    assert seconds(same, row | {"sparsity": "2of4"}, fields=NO_FIELDS) == pytest.approx(
        dense, rel=0.1
    )  # its bytes are fewer


KEPT = {"fp8": lambda d: d, "int8": lambda d: d + 4, "int4": lambda d: d / 2 + 4}
"""Bytes of a head's key, or value, of one position: elements, and a scale and an offset of 16 bits."""


@pytest.mark.slow(seconds=1)
@given(cuda, attentions(), st.sampled_from(sorted(KEPT)))
def test_keys_and_values_are_read_as_they_are_kept_and_no_faster_than_memory_brings_them(gpu, row, kept):
    row = row | ({"q_len": 1} if row["op"] == "attention_decode" else {"kv_len": row["kv_len"] + 1})
    rows = [row, row | {"cache": kept}]
    made = make_operations(rows)
    heads = 2 * row["batch"] * row["kv_len"] * row["kv_heads"]
    read, fewer = compulsory_bytes(made).tolist()
    assert read - fewer == pytest.approx(heads * (2 * row["head_dim"] - KEPT[kept](row["head_dim"])))
    assert found(gpu, rows[1]).seconds[0] >= least_seconds(made, GPUS[gpu])[1] * (1 - 1e-12)
    assert found(gpu, rows[1]).error[0] >= 0.2  # none was measured
    assert not found(gpu, rows[1]).nearby[0]


@given(cuda, attentions(), st.sampled_from(sorted(KEPT)))
def test_a_whole_prompt_reads_its_keys_and_values_as_they_were_made(gpu, row, kept):
    row = row | {"op": "attention_prefill", "kv_len": row["q_len"]}
    made = make_operations([row, row | {"cache": kept}])
    assert len(set(compulsory_bytes(made).tolist())) == 1
    assert not made.reads_cache().any()
    plain, other = predict(GPUS[gpu], made, cache_write=False, fields=NO_FIELDS).seconds.tolist()
    assert plain == other


@pytest.mark.slow(seconds=1)
@given(st.integers(256, 4096), st.integers(8192, 65536))
def test_a_chunk_multiplies_a_cache_in_fp8_as_it_is_or_makes_operands_of_it(new, known):
    row = {"op": "attention_prefill", "q_len": new, "kv_len": new + known, "heads": 32, "kv_heads": 8, "head_dim": 128}
    plain, fp8, int8 = (seconds("h100", row | {"dtype": "bf16"} | cache) for cache in CACHES)
    assert 1 < plain / fp8 < 2  # exponentials take as long
    assert plain < int8
    ampere, made = (seconds("a100", row | {"dtype": "bf16"} | cache) for cache in CACHES[:2])
    assert ampere < made  # fp8 is no operand there
    slow = GPUS["a100"].model_copy(update={"integer": 1})
    assert found(slow, row | {"dtype": "bf16", "cache": "int8"}).bound == ["dequantization"]


def test_a_prompt_writes_its_keys_and_values_as_they_are_kept():
    row = {"op": "attention_prefill", "q_len": 512, "kv_len": 512, "batch": 32, "heads": 8, "kv_heads": 8}
    row |= {"head_dim": 128, "dtype": "bf16"}
    plain, kept = found("h100", row, row | {"cache": "fp8"}).seconds.tolist()
    assert kept <= plain
    assert len(set(found("h100", row, row | {"cache": "fp8"}).error.tolist())) == 1


def test_a_library_that_multiplies_in_fp8_unpacks_nothing():
    row = {"op": "attention_decode", "batch": 64, "kv_len": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128}
    plain, fp8, int8 = (seconds("h100", row | {"dtype": "bf16"} | cache) for cache in CACHES)
    assert 1.6 < plain / fp8 < 2
    assert fp8 < int8
    assert found("b200", row | {"cache": "fp8"}).bound[0] in ("memory", "compute")
    slow = GPUS["a100"].model_copy(update={"integer": 1})
    assert found(slow, row | {"cache": "int8"}).bound == ["dequantization"]
    with pytest.raises(NotSupported, match="keys and values in int8 with bf16 operands on mi300x"):
        found("mi300x", row | {"cache": "int8"})


CACHES = ({}, {"cache": "fp8"}, {"cache": "int8"})


@pytest.mark.parametrize(
    ("precision", "cache"), [("fp32", "bf16"), ("fp32", "fp16"), ("fp8", "int4"), ("int8", "int4")]
)
def test_a_model_in_other_operands_with_another_cache_is_refused_by_name(precision, cache):
    graph = load_workload(
        "gpt2", [("phase", "decode"), ("layers", "1"), ("precision", precision), ("cache_precision", cache)]
    )
    with pytest.raises(NotSupported, match=f"keys and values in {cache} beside operands in {precision}"):
        kernels_of(graph)


@pytest.mark.parametrize("dtype", ["fp8", "fp32"])
def test_other_operands_are_kept_as_they_are(dtype):
    row = {"op": "attention_decode", "batch": 1, "kv_len": 64, "heads": 8, "kv_heads": 8, "head_dim": 64}
    with pytest.raises(LoomError, match="operands in fp16 or bf16"):
        make_operations([row | {"dtype": dtype, "cache": "int8"}])


@pytest.mark.parametrize(
    ("length", "batch", "bound"), [(16, 1, "launch"), (256, 4096, "memory"), (16384, 4, "compute")]
)
def test_a_backward_pass_says_what_limits_it(length, batch, bound):
    row = {"op": "attention_backward", "batch": batch, "q_len": length, "heads": 16, "head_dim": 64, "dtype": "bf16"}
    assert predict(load_gpu("h100"), make_operations([row])).bound == [bound]
