"""Bars: quantiles of what was left out, wider the less a prediction rests on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines.bars import (
    COVERED,
    KINDS,
    Bars,
    Relation,
    packaged_bars,
    quantiles,
    read_bars,
    run_bars,
    run_name,
    write_bars,
)
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.cli import main
from siliconloom.evaluate.runs import predict_step

ROWS = (
    {"op": "gemm", "m": 512, "n": 4096, "k": 4096, "dtype": "bf16"},
    {"op": "attention_prefill", "batch": 2, "q_len": 1024, "kv_len": 1024, "heads": 32, "kv_heads": 8, "head_dim": 128},
    {"op": "attention_decode", "batch": 16, "kv_len": 2048, "heads": 32, "kv_heads": 8, "head_dim": 128},
)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=200))
def test_a_bar_holds_its_share_and_no_smaller_one_of_them_does(errors):
    errors = np.array(errors)
    for bar, share in zip(quantiles(errors), COVERED, strict=True):
        assert (errors <= bar).mean() >= share - 1e-9
        assert (errors < bar).mean() <= share + 1e-9


def test_weights_make_a_small_table_count_as_a_large_one():
    few, many = np.full(10, 0.3), np.full(1000, 0.1)
    weights = np.concatenate([np.full(10, 1 / 10), np.full(1000, 1 / 1000)])
    assert quantiles(np.concatenate([few, many]), weights)[1] == 0.3
    assert quantiles(np.concatenate([few, many]))[1] == 0.1


@pytest.mark.parametrize("row", ROWS)
def test_less_known_is_wider(row):
    own, other_description, unmeasured = (
        predict(gpu, make_operations([row]))
        for gpu in (load_gpu("h100"), load_gpu("h100", [("clock", "1.5 GHz")]), load_gpu("l40s"))
    )
    assert own.error[0] < other_description.error[0] <= other_description.error_90[0]
    assert own.error[0] < unmeasured.error[0]
    assert own.error_90[0] < unmeasured.error_90[0]
    another = predict(load_gpu("h100"), make_operations([row]), software="another program")
    assert another.error_90[0] > own.error_90[0]
    assert (own.nearby[0], unmeasured.nearby[0], another.nearby[0]) == (True, False, False)


@given(st.integers(0, 12))
def test_bars_never_shrink_with_the_distance_from_what_was_measured(doublings):
    row = ROWS[0] | {"n": 2**14, "k": 2**14}
    near, far = (row | {"m": 2**17 << d} for d in (doublings, doublings + 1))
    made = predict(load_gpu("h100"), make_operations([near, far]))
    assert made.error[1] >= made.error[0] * (1 - 1e-9)
    assert made.error_90[1] >= made.error_90[0] * (1 - 1e-9)


def test_messages_between_nodes_are_less_certain_than_within_one():
    row = {"op": "all_reduce", "bytes": 2**18, "dtype": "fp16"}
    within, between = predict(load_gpu("h100"), make_operations([row | {"gpus": g} for g in (8, 16)])).error_90
    assert between > within


@given(st.floats(0, 1), st.floats(0, 1), st.booleans(), st.booleans())
def test_a_whole_run_is_less_certain_than_its_kernels(half, more, prompts, hosted):
    found = run_bars(packaged_bars(), run_name(prompts, hosted), (half, half + more))
    assert found[0] >= half
    assert found[1] >= half + more
    assert found[1] > found[0]


def test_a_step_has_the_bars_of_its_kernels():
    step = predict_step(load_gpu("h100"), "llama3-8b", "decode", tokens=512, batch=8)
    assert 0.005 < step.bars[0] < step.bars[1] < 0.5
    borrowed = predict_step(load_gpu("l40s"), "llama3-8b", "decode", tokens=512, batch=8)
    assert borrowed.bars[0] > 2 * step.bars[0]


def test_every_relation_has_bars_of_every_kind_and_files_hold_them(tmp_path):
    bars = packaged_bars()
    for relation in Relation:
        for kind in KINDS:
            if relation is not Relation.MEASURED:
                assert (bars.kinds[relation, kind][:, 1] >= bars.kinds[relation, kind][:, 0]).all()
    assert all((cells > 0).all() for cells in bars.fields.values())
    write_bars(bars, tmp_path / "bars.json")
    again = read_bars(tmp_path / "bars.json")
    assert isinstance(again, Bars)
    assert again.runs == bars.runs
    assert all((again.fields[name] == bars.fields[name]).all() for name in bars.fields)


def of(gpu, row, **changes):
    described = load_gpu(gpu).model_copy(update=changes)
    return predict(described, make_operations([row]))


GEMM = {"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "batch": 1, "dtype": "bf16"}


@pytest.mark.parametrize("changes", [{"architecture": "ampere"}, {"multiprocessors": 8}, {"clock": 6_000_000_000}])
def test_a_description_that_is_no_longer_the_measured_gpu_has_the_bars_of_one_that_nobody_measured(changes):
    kept, changed = of("h100", GEMM), of("h100", GEMM, **changes)
    named = of("h100", GEMM, name="mine", architecture="ampere") if "architecture" in changes else changed
    assert not changed.nearby[0]
    assert changed.error[0] >= named.error[0]
    assert changed.error[0] > 4 * kept.error[0]
    assert changed.error_90[0] > 4 * kept.error_90[0]


@given(
    st.sampled_from(["h100", "h200", "a100", "v100"]),
    st.sampled_from(["gemm", "attention_decode", "rmsnorm"]),
    st.integers(1, 4096),
    st.tuples(st.floats(0.3, 6.0), st.floats(0.3, 6.0)),
)
def test_more_bandwidth_is_never_slower_however_far_a_description_is_changed(name, op, many, factors):
    """Residuals of a name are those of any description under it: beyond twice its bandwidth they were forgotten."""
    heads = {"batch": many, "q_len": 1, "kv_len": 512, "heads": 8, "kv_heads": 8, "head_dim": 64}
    sizes = heads if op == "attention_decode" else {"m": many, "n": 2048, "k": 2048}
    described = load_gpu(name)

    def seconds(factor):
        bandwidth = round(described.memory.bandwidth * factor)
        changed = described.model_copy(update={"memory": described.memory.model_copy(update={"bandwidth": bandwidth})})
        return predict(changed, make_operations([sizes | {"op": op, "dtype": "fp16"}])).seconds[0]

    slow, fast = map(seconds, sorted(factors))
    assert fast <= slow * (1 + 1e-9)


def test_what_a_changed_description_rests_on_is_said(capsys):
    sets = ["workload.layers=1", "workload.phase=decode", "memory.bandwidth=3TB/s"]
    assert main(["sim", "a100", "smollm2-135m", *(option for each in sets for option in ("--set", each))]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "predicted outside of what was measured" in told
    assert "mechanism alone" not in told
    assert "not the a100 whose kernels were timed; it keeps the residuals of that one" in told


@pytest.mark.parametrize("gpu", ["h100", "h200", "a100"])
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 8), st.floats(0.05, 0.95), st.sampled_from([128, 512, 2048]), st.sampled_from([(32, 8), (64, 8)]))
def test_between_batches_of_the_tables_a_bar_reaches_the_straight_line_between_them(gpu, power, share, keys, heads):
    low = 2**power
    batch = round(low * 2**share)
    rows = [
        {
            "op": "attention_decode",
            "batch": each,
            "q_len": 1,
            "kv_len": keys,
            "heads": heads[0],
            "kv_heads": heads[1],
            "head_dim": 128,
            "dtype": "bf16",
        }
        for each in (low, batch, 2 * low)
    ]
    found = predict(load_gpu(gpu), make_operations(rows))
    before, here, after = np.log(found.seconds)
    part = np.log2(batch / low)
    assert found.error_90[1] >= abs(here - (before + (after - before) * part)) - 1e-9
