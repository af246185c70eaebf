"""Products of experts in one kernel: counts against all ways to deal rows, times against measured rows."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines import tables
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.families import split
from siliconloom.baselines.grouped import pairs_of
from siliconloom.baselines.mechanism import mechanism
from siliconloom.baselines.model import kernels_of, predict_model
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.operations import Dealt, Op
from siliconloom.baselines.predict import predict
from siliconloom.baselines.roofline import compulsory_bytes, flops
from siliconloom.baselines.torch_operations import group_ends
from siliconloom.workloads import load_workload
from siliconloom.workloads.roles import EXPERTS, Pass


def row(**columns):
    return {"op": "grouped_gemm", "m": 4096, "n": 2048, "k": 1024, "batch": 32, "dtype": "bf16"} | columns


@given(st.integers(1, 5000), st.integers(1, 200), st.sampled_from([64, 128, 256]))
def test_stacks_of_evenly_dealt_rows_are_those_of_every_expert(rows, groups, tall):
    ends = group_ends(rows, groups)
    counts = np.diff([0, *ends])
    assert counts.sum() == rows
    assert counts.max() - counts.min() <= 1
    assert pairs_of(float(rows), float(groups), False, float(tall), 1.0) == sum(math.ceil(c / tall) for c in counts)


@given(st.integers(1, 900), st.integers(2, 100), st.integers(1, 8), st.sampled_from([32, 64, 128]))
def test_stacks_and_experts_by_chance_are_the_means_of_all_ways_to_deal(tokens, groups, used, tall):
    assume(used < groups)
    # of one expert to get r rows: of each token, with `used` of the groups
    ways = [math.comb(tokens, r) * used**r * (groups - used) ** (tokens - r) for r in range(tokens + 1)]
    stacks = groups * Fraction(sum(w * -(-r // tall) for r, w in enumerate(ways)), groups**tokens)
    found = pairs_of(float(tokens * used), float(groups), True, float(tall), float(used))
    assert found == pytest.approx(float(stacks), rel=1e-9)
    active = make_operations([row(m=tokens * used, batch=groups, dealt="chance", top_k=used)]).products()[0]
    assert active == pytest.approx(float(groups * Fraction(sum(ways[1:]), groups**tokens)), rel=1e-9)


def test_a_tokens_experts_are_different():
    ends = group_ends(60, 5, Dealt.CHANCE, 3, 4)
    counts = np.diff([0, *ends])
    assert counts.sum() == 60
    assert counts.max() <= 15  # of 15 tokens
    assert group_ends(20, 4, Dealt.CHANCE, 3, 4) == [5, 10, 15, 20]
    one = make_operations([row(m=6, batch=8, dealt="chance", top_k=6), row(m=6, batch=6)])
    assert one.products().tolist() == pytest.approx([6.0, 6.0])


def test_draws_are_the_same_for_one_seed_and_all_rows():
    first = group_ends(100, 7, Dealt.CHANCE, 1)
    assert first == group_ends(100, 7, Dealt.CHANCE, 1) != group_ends(100, 7, Dealt.CHANCE, 2)
    assert first[-1] == 100
    assert len(first) == 7


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(1, 512), st.integers(1, 512))
def test_work_is_that_of_the_rows_and_of_experts_that_have_one(m, experts, n, k):
    one = make_operations([row(m=m, batch=experts, n=n, k=k)])
    assert flops(one)[0] == 2.0 * m * n * k
    assert compulsory_bytes(one)[0] == 2 * (m * (n + k) + min(m, experts) * n * k)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_rows_that_nothing_was_fitted_to(gpu):
    table = tables.load(f"torch-{gpu}-grouped")
    unseen = split(table)[1]
    chance = table.operations.by_chance()
    assert unseen[chance].all()
    assert (unseen & ~chance).sum() == 68
    found = predict(load_gpu(gpu), table.operations, software="torch")
    off = np.abs(np.log(found.seconds * 1e6 / table.time_us))
    assert np.median(off[unseen & ~chance]) < 0.06
    assert np.median(off[chance]) < 0.06
    assert np.quantile(off[unseen], 0.9) < 0.15


@given(st.integers(1, 300), st.integers(1, 64), st.sampled_from(["bf16", "fp16", "int8"]))
def test_without_a_kernel_of_their_own_they_are_products_in_a_batch(each, experts, dtype):
    batch = row(op="gemm", m=each, batch=experts, dtype=dtype)
    both = make_operations([row(m=each * experts, batch=experts, dtype=dtype), batch])
    one, other = mechanism(load_gpu("a100"), both).seconds
    assert one == pytest.approx(other) or (dtype == "int8" and one < other)  # whose activations come rounded


def test_other_programs_have_other_kernels():
    one = make_operations([row()])
    torch, vllm = (predict(load_gpu("h100"), one, software=name) for name in ("torch", "vllm"))
    assert vllm.seconds == torch.seconds
    assert vllm.error > torch.error


def test_by_chance_a_pair_of_tiles_is_seldom_just_full():
    even, chance = predict(
        load_gpu("h200"), make_operations([row(k=7168, n=4096), row(k=7168, n=4096, dealt="chance")])
    ).seconds
    assert chance > 1.3 * even  # 128 rows each: half of the experts have more (measured: 1.7)


def test_experts_of_a_layer_are_one_kernel_but_their_weights_gradients():
    graph = load_workload("mixtral-8x7b", [("layers", "1"), ("sequence", "512")])
    rows = {kernel.operator: kernel.row for kernel in kernels_of(graph)}
    expert = next(row for name, row in rows.items() if "expert" in name and row["op"] == "grouped_gemm")
    assert (expert["m"], expert["batch"], expert["n"]) == (1024, 8, 28672)
    training = load_workload("mixtral-8x7b", [("layers", "1"), ("sequence", "512"), ("phase", "training")])
    by_pass = {o.name: o.place.step for o in training.operators() if o.role in EXPERTS}
    kinds = {(by_pass[k.operator], k.row["op"]) for k in kernels_of(training) if k.operator in by_pass}
    assert (Pass.WEIGHT_GRADIENT, "gemm") in kinds
    assert (Pass.WEIGHT_GRADIENT, "grouped_gemm") not in kinds
    assert (Pass.INPUT_GRADIENT, "grouped_gemm") in kinds


def test_experts_of_other_rows_are_part_of_the_same_kernel():
    popular = "[" + ", ".join(["8"] * 4 + ["2"] * 4) + "]"
    sets = [("layers", "1"), ("sequence", "512"), ("expert_popularity", popular)]
    kernels = kernels_of(load_workload("mixtral-8x7b", sets))
    products = [k for k in kernels if k.row["op"] == "grouped_gemm"]
    assert [k.fused for k in products] == [False, False, True, True]
    assert sum(k.row["m"] for k in products if k.row["n"] == 28672) == 1024
    assert sum(k.row["batch"] for k in products if k.row["n"] == 28672) == 8
    gpu = load_gpu("h200")
    both = predict_model(gpu, load_workload("mixtral-8x7b", sets))
    apart = predict(gpu, both.operations.select([k.fused for k in both.kernels])).seconds
    inside = both.seconds[[k.fused for k in both.kernels]]
    experts = both.operations.select([k.fused for k in both.kernels]).among(Op.GROUPED_GEMM)
    assert np.allclose((apart - inside)[experts], load_efficiency("hopper").grouped.launch)


def test_a_sum_of_experts_reads_all_of_them():
    kernels = kernels_of(load_workload("deepseek-v3", [("phase", "decode"), ("context", "100"), ("layers", "5")]))
    (combine,) = [k for k in kernels if k.operator == "moe_layer.combine"]
    assert compulsory_bytes(make_operations([combine.row]))[0] >= 2 * 7168 * (9 + 1)  # eight, the shared one, the sum


def test_what_limits_grouped_products():
    """Few rows wait for their launch, rows of all experts for weights, many for arithmetic, codes to be unpacked."""
    few = row(m=1, n=256, k=256)
    weights, many = row(m=512, n=14336, k=4096, batch=8), row(m=65536, n=14336, k=4096, batch=8)
    codes = make_operations([weights | {"weights": "int4", "group": 32}])
    gpu = load_gpu("h100")
    assert mechanism(gpu, make_operations([few, weights, many])).bound == ["launch", "memory", "compute"]
    slow = gpu.model_copy(update={"integer": gpu.integer // 8, "vector": {k: v // 8 for k, v in gpu.vector.items()}})
    assert mechanism(slow, codes).seconds > 1.3 * mechanism(gpu, codes).seconds  # every tile unpacks its codes anew


def test_narrow_products_have_small_tiles():
    """Tiles of 64 rows where there are at most 128 columns, of which the large ones would leave half empty."""
    narrow, wide = mechanism(
        load_gpu("h100"), make_operations([row(m=32 * 8192, n=n, k=4096) for n in (128, 129)])
    ).seconds
    assert wide > 1.05 * narrow
