"""Residuals of measured rows: their nearest neighbours, how they fade, what borrows none; the files of the package."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines import residuals
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.operations import Op
from siliconloom.baselines.predict import predict
from siliconloom.baselines.residuals import (
    NEAREST,
    NO_FIELDS,
    SIXTEEN_BITS,
    collect,
    coordinates,
    corrections,
    make_field,
    packaged,
    read_fields,
    write_fields,
)

H100 = load_gpu("h100")
PRODUCT = {"op": "gemm", "m": 1024, "n": 4096, "k": 4096, "dtype": "bf16"}
coordinate = st.integers(0, 15 * 4).map(lambda quarter: quarter / 4)


def field(points, logs, *, gpu="h100", op=Op.GEMM, scale=0.3, reach=4.0, software="made", reference=True):
    made = {"scale": scale, "reach": reach, "reference": reference}
    return make_field(gpu, op, SIXTEEN_BITS, software, np.array(points, float), np.array(logs, float), **made)


def brute_force(points, logs, asked, scale, reach):
    """The mean that the docstring of `nearest_mean` defines, by sorting all distances."""
    squares = ((points - asked) ** 2).sum(axis=1)
    order = np.argsort(squares, kind="stable")[:NEAREST]
    weights = np.exp(-(squares[order] - squares[order[0]]) / (2 * scale**2))
    mean = (weights * logs[order]).sum() / weights.sum()
    return mean * np.exp(-squares[order[0]] / reach**2), np.sqrt(squares[order[0]]), squares


@pytest.mark.slow(seconds=1)
@given(
    arrays.arrays(float, st.tuples(st.integers(1, 60), st.integers(1, 5)), elements=coordinate),
    st.data(),
    st.sampled_from([0.2, 0.5]),
    st.sampled_from([1.0, 4.0]),
)
def test_the_tree_finds_the_nearest_rows(points, data, scale, reach):
    logs = np.round(np.sin(points @ np.arange(1.0, points.shape[1] + 1)), 3)
    asked = np.array([data.draw(coordinate) for _ in range(points.shape[1])])
    found, octaves = field(points, logs, scale=scale, reach=reach).at(asked[None])
    wanted, nearest, squares = brute_force(points, logs, asked, scale, reach)
    assert octaves[0] == pytest.approx(nearest, abs=1e-6)
    ranked = np.sort(squares)
    if len(ranked) <= NEAREST or ranked[NEAREST - 1] < ranked[NEAREST]:  # no tie at the last place
        assert found[0] == pytest.approx(wanted, abs=2e-4)


@given(st.floats(-1, 1), st.integers(1, 16384), st.integers(1, 16384), st.integers(1, 16384))
def test_a_row_measured_alone_corrects_itself_and_fades_to_the_mechanism(log, m, n, k):
    row = PRODUCT | {"m": m, "n": n, "k": k}
    made = make_operations([row])
    fields = collect([field(coordinates(made, Op.GEMM), [log], reach=1.0)])
    assert corrections(fields, "h100", made).log[0] == pytest.approx(log, abs=2e-3)
    far = make_operations([row | {"m": min(m * 64, 2**30)}])
    away = corrections(fields, "h100", far)
    assert abs(away.log[0]) <= abs(log) * np.exp(-30) + 1e-6
    assert not away.near[0]
    assert away.octaves[0] == pytest.approx(6.0, abs=0.01)


@pytest.mark.parametrize(
    "other",
    [{"batch": 8}, {"weights": "int4", "group": 128}, {"sparsity": "2of4"}, {"dtype": "fp8"}, {"dtype": "tf32"}],
)
def test_unlike_kernels_borrow_no_residual(other):
    made = make_operations([PRODUCT])
    fields = collect([field(coordinates(made, Op.GEMM), [0.5], software="tensorrt-llm")])
    plain, unlike = (predict(H100, make_operations([PRODUCT | more]), fields=fields) for more in ({}, other))
    alone = predict(H100, make_operations([PRODUCT | other]), fields=NO_FIELDS)
    assert plain.nearby[0]
    assert unlike.seconds[0] == alone.seconds[0]
    assert not unlike.nearby[0]
    assert unlike.error[0] > plain.error[0]


@pytest.mark.parametrize(
    ("row", "other"),
    [
        ({"op": "attention_prefill", "q_len": 512, "kv_len": 512}, {"kv_len": 1024}),
        ({"op": "attention_prefill", "q_len": 512, "kv_len": 512}, {"causal": "false"}),
        ({"op": "attention_decode", "q_len": 1, "kv_len": 512}, {"q_len": 4}),
        ({"op": "attention_decode", "q_len": 1, "kv_len": 512}, {"cache": "fp8"}),
    ],
)
def test_chunks_and_other_caches_are_by_the_mechanism_alone(row, other):
    row = row | {"batch": 4, "heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16"}
    plain, unlike = (predict(H100, make_operations([r])) for r in (row, row | other))
    assert plain.nearby[0]
    assert not unlike.nearby[0]
    assert unlike.seconds[0] == predict(H100, make_operations([row | other]), fields=NO_FIELDS).seconds[0]


def test_a_window_takes_what_is_known_of_the_prompt_without_and_is_not_measured():
    row = {"op": "attention_prefill", "q_len": 512, "batch": 4, "heads": 32, "kv_heads": 8, "head_dim": 128}
    plain, bounded = (make_operations([row | each]) for each in ({}, {"window": 511}))
    measured, predicted = predict(H100, plain), predict(H100, bounded)
    assert (measured.nearby[0], predicted.nearby[0]) == (True, False)
    assert predicted.error[0] > measured.error[0]
    alone = [predict(H100, each, fields=NO_FIELDS).seconds[0] for each in (plain, bounded)]
    assert predicted.seconds[0] / alone[1] == pytest.approx(measured.seconds[0] / alone[0])


def test_the_default_is_the_reference_and_other_software_is_asked_for():
    points = coordinates(make_operations([PRODUCT]), Op.GEMM)
    ours, theirs = field(points, [0.2]), field(points, [-0.3], software="theirs", reference=False)
    fields = collect([ours, theirs])
    made = make_operations([PRODUCT])
    assert corrections(fields, "h100", made).log[0] == pytest.approx(0.2)
    assert corrections(fields, "h100", made, "theirs").log[0] == pytest.approx(-0.3)
    assert not np.isfinite(corrections(fields, "h100", made, "nobody's").octaves[0])
    assert fields.software == ["made", "theirs"]


def test_a_relative_takes_only_what_was_found_to_carry_over():
    points = coordinates(make_operations([PRODUCT]), Op.GEMM)
    for transferred, log in (((Op.GEMM,), 0.2), ((), 0.0)):
        fields = collect([field(points, [0.2])], {"h800": "h100"}, transferred)
        found = corrections(fields, "h800", make_operations([PRODUCT]))
        assert found.log[0] == pytest.approx(log)
        assert not found.own[0]


@pytest.mark.slow(seconds=1)
@given(st.integers(1, 16384), st.integers(1, 16384), st.integers(1, 16384))
def test_what_is_asked_of_other_descriptions_is_no_measurement(m, n, k):
    row = make_operations([PRODUCT | {"m": m, "n": n, "k": k}])
    changed = H100.model_copy(update={"clock": 1_000_000_000})
    own, other = (predict(gpu, row) for gpu in (H100, changed))
    assert not other.nearby[0]
    assert other.seconds[0] >= own.seconds[0] * (1 - 1e-9)
    assert predict(H100.model_copy(update={"name": "mine"}), row).nearby.tolist() == [False]


def test_files_hold_what_was_written(tmp_path):
    draw = np.random.default_rng(3)
    made = field(draw.uniform(0, 15, (50, 3)), draw.normal(0, 0.2, 50))
    fields = collect([made], {"h800": "h100"}, (Op.GEMM,), frozenset({("a100", Op.ADD, SIXTEEN_BITS)}))
    write_fields(fields, tmp_path)
    again = read_fields(tmp_path)
    assert (again.relatives, again.transferred, again.alone) == (fields.relatives, fields.transferred, fields.alone)
    read, own = again.of("h100", Op.GEMM, SIXTEEN_BITS)
    assert own
    asked = draw.uniform(0, 15, (20, 3))
    np.testing.assert_allclose(read.at(asked), made.at(asked), atol=1e-6)


@pytest.mark.checkout
@pytest.mark.parametrize("op", [Op.ATTENTION_DECODE, Op.GEMM])
def test_fields_of_the_package_are_those_of_its_tables(op):
    """Made again from the tables of one GPU: constants or tables that changed need `benchmarks.gpu_residuals`."""
    from benchmarks.gpu_residuals import SOURCES, source_rows

    source = next(s for s in SOURCES if s.gpu == "a100" and op in s.ops and s.reference)
    rows = next(r for r in source_rows(source) if r.op is op)
    kept, own = packaged().of("a100", op, SIXTEEN_BITS)
    assert own
    assert len(kept) == len(rows.residuals)
    made = rows.field(kept.scale, kept.reach)
    np.testing.assert_array_equal(kept.points, made.points)
    np.testing.assert_allclose(kept.residuals, made.residuals, atol=2e-4)


def test_every_field_of_the_package_helps_where_it_is_used():
    fields = packaged()
    assert {(gpu, op) for gpu, op, _ in fields.reference} >= {("h100", Op.GEMM), ("a100", Op.ATTENTION_DECODE)}
    assert Op.ATTENTION_PREFILL not in fields.transferred
    assert all(len(fields.found[key]()) >= 60 for key in fields.found)
    assert residuals.packaged() is fields
