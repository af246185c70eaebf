"""Measured tables: what is written is read again, what cannot be true is refused, and what the package brings."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.baselines import tables
from siliconloom.baselines.families import split
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.operations import COLUMNS
from siliconloom.baselines.profile_tables import PROFILES, describe_profile, profile_names
from siliconloom.baselines.roofline import Limits, bus_bytes, compulsory_bytes, floors, flops, least_seconds, link_bytes
from siliconloom.baselines.tables import Method, Provenance, build, load_file, parse_table, table_text, write_table
from siliconloom.baselines.validation import conflicts, possible, validate
from tests.baselines.rows import kernel

H100 = Limits(
    flops={"fp32": 67e12, "tf32": 495e12, "fp16": 989e12, "bf16": 989e12, "fp8": 1979e12, "int8": 1979e12},
    memory_bandwidth=3.35e12,
    l2_bytes=50 * 2**20,
    link_bandwidth=450e9,
)
ORIGIN = Provenance(title="made up", gpus=("h100",), source="nowhere", licence="Apache-2.0", method=Method.SUSTAINED)
COLUMNS_BESIDE = ("gpu", "software", "model", "time_us", "power_w", "clock_mhz", "input_tokens", "output_tokens")

model = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["prefill", "decode", "serve", "layer_decode"]),
        "batch": st.integers(1, 64),
        "gpus": st.integers(1, 8),
        "dtype": st.sampled_from(["bf16", "fp8"]),
    }
)
positive = st.floats(1e-3, 1e9, allow_nan=False)


@st.composite
def made_tables(draw, rows=kernel | model, most=20):
    chosen = draw(st.lists(rows, min_size=1, max_size=most))
    count = len(chosen)

    def column(strategy):
        return draw(st.lists(strategy, min_size=count, max_size=count))

    return build(
        "made",
        ORIGIN,
        make_operations(chosen),
        gpu="h100",
        time_us=column(positive),
        power_w=column(positive | st.just(np.nan)),
        clock_mhz=column(positive | st.just(np.nan)),
        software=column(st.sampled_from(["", "torch 2.9"])),
        input_tokens=column(st.integers(0, 2**17)),
        model=["llama3-8b" if "m" not in row and "heads" not in row and "bytes" not in row else "" for row in chosen],
        output_tokens=column(st.integers(0, 2**17)),
    )


def same(a, b):
    return all(np.array_equal(getattr(a.operations, n), getattr(b.operations, n)) for n in COLUMNS) and all(
        np.array_equal(getattr(a, n), getattr(b, n), equal_nan=n in ("power_w", "clock_mhz")) for n in COLUMNS_BESIDE
    )


@given(made_tables())
def test_a_table_written_is_the_table_read(table):
    text = table_text(table)
    assert same(parse_table("made", "made.csv", text, ORIGIN), table)
    assert table_text(parse_table("made", "made.csv", text, ORIGIN)) == text


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_files_are_the_same_bytes_every_time_and_either_of_the_pair_is_enough_to_name_it(tmp_path, suffix):
    rows = [{"op": "gemm", "m": 1, "n": 2, "k": 3}, {"op": "all_reduce", "gpus": 2, "bytes": 4}]
    table = build("x", ORIGIN, make_operations(rows), gpu="h100", time_us=[1.5, 2])
    first, second = tmp_path / f"x{suffix}", tmp_path / f"y{suffix}"
    write_table(table, first)
    write_table(table, second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"x{suffix}", "x.yaml", f"y{suffix}", "y.yaml"])
    assert same(load_file(first), table)
    assert same(load_file(tmp_path / "y.yaml"), table)
    assert load_file(first).provenance.title == "made up"


def written(tmp_path, text, **described):
    data = {"schema": 1, **ORIGIN.model_dump(mode="json", exclude_defaults=True), **described}
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "t.yaml").write_text(
        "\n".join(f"{k}: {v if isinstance(v, int | float) else repr(v)}" for k, v in data.items() if v is not None)
    )
    return tmp_path / "t.csv"


G = "op,gpu,m,n,k,time_us\n"
GOOD = G + "gemm,h100,1,2,3,5\n"


@pytest.mark.parametrize(
    ("rows", "described", "message"),
    [
        (GOOD, {"schema": 2}, "t.yaml:1:9: schema: a baseline of another schema version; this version reads 1 (got 2)"),
        (GOOD, {"schema": None}, "t.yaml:1:1: the key 'schema' is missing; this version reads schema 1"),
        (GOOD, {"sustained": 1}, "unknown key 'sustained'"),
        (GOOD, {"method": "guessed"}, "method: must be one of short burst, sustained"),
        (GOOD, {"rows": 7}, "t.csv: has 1 rows, t.yaml describes a table of 7"),
        (GOOD, {"sha256": "00"}, "t.csv: is not the table that t.yaml describes: its sha256 differs"),
        (G + "gemm,h100,1,2,3,\n", {}, "t.csv:2:17: time_us: must be a time in microseconds"),
        (G + "gemm,h100,1,2,3,nan\n", {}, "t.csv:2:17: time_us: must be a positive number (got 'nan')"),
        (G + "gemm,h100,1,2,3,-5\n", {}, "t.csv:2:17: time_us: must be a positive number (got '-5')"),
        (G + "gemm,h100,1,2,3,0\n", {}, "t.csv:2:17: time_us: must be a positive number (got '0')"),
        (G + "gemm,h100,1,2,3,slow\n", {}, "t.csv:2:17: time_us: must be a number (got 'slow')"),
        (
            G + "gemm,hh100,1,2,3,5\n",
            {},
            "t.csv:2:6: gpu: must be one of the GPUs of the table: h100 (got 'hh100'); did you mean 'h100'?",
        ),
        ("op,m,n,k,time_us\ngemm,1,2,3,5\n", {}, "t.csv:1:1: the column 'gpu' is missing"),
        ("op,gpu,batch,time_us\nserve,h100,1,5\n", {}, "t.csv:2:1: model: whole models and layers need it"),
    ],
)
def test_a_broken_baseline_is_refused(tmp_path, rows, described, message):
    path = written(tmp_path, rows, **described)
    with pytest.raises(LoomError) as caught:
        load_file(path)
    assert message in str(caught.value).replace(f"{tmp_path}/", "")


def test_a_baseline_without_its_other_half_says_which(tmp_path):
    path = written(tmp_path, GOOD)
    (tmp_path / "t.yaml").unlink()
    with pytest.raises(
        LoomError, match=r"t\.yaml: no such file; a baseline is NAME\.csv or NAME\.csv\.gz with NAME\.yaml"
    ):
        load_file(path)
    with pytest.raises(LoomError, match=r"a baseline file is named"):
        load_file(tmp_path / "t.parquet")


@given(made_tables(kernel), st.floats(1.01, 1e3))
def test_rows_at_their_floor_pass_and_any_faster_row_is_refused(table, factor):
    floor = least_seconds(table.operations, H100) * 1e6
    rows = np.flatnonzero(floor > 1e-3)
    if not len(rows):
        return
    table = build("t", ORIGIN, table.operations, gpu="h100", time_us=np.maximum(floor, 1e-3))
    times = table.time_us.copy()
    if not conflicts(table):
        validate(table, H100)
        validate(table, {"h100": H100})
        validate(table, {"a100": H100})
    assert possible(table.operations, table.time_us / 1e6, H100).all()
    times[rows[0]] /= factor
    faster = build("t", ORIGIN, table.operations, gpu="h100", time_us=times)
    with pytest.raises(LoomError, match=r"^t:\d+: "):
        validate(faster, H100)
    if not conflicts(faster):
        with pytest.raises(LoomError, match=rf"^t:{faster.line[rows[0]]}: .* above (its|the bandwidth)"):
            validate(faster, H100)


def test_what_is_refused_names_the_row_the_figure_and_the_limit():
    def one(row, time_us, **more):
        return build("t.csv", ORIGIN, make_operations([row]), gpu="h100", time_us=time_us, **more)

    product = {"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}
    refused = [
        (
            one(product, 100),
            "t.csv:2: gemm m=4096 n=4096 k=4096 batch=1 bf16 on h100 in 100 us is 1.374 PFLOP/s, above its peak of 989",
        ),
        (one({"op": "add", "m": 8192, "n": 8192, "dtype": "fp32"}, 100), "above its memory bandwidth of 3.35 TB/s"),
        (
            one({"op": "all_gather", "gpus": 8, "bytes": 2**30}, 1000),
            "is 939.5 GB/s, above the bandwidth of its links of 450 GB/s",
        ),
        (one({**product, "dtype": "fp4"}, 1e6), "h100 has no fp4 arithmetic"),
        (one(product, np.nan), "t.csv:2: time_us must be a positive number (got nan)"),
        (one(product, -1), "t.csv:2: time_us must be a positive number (got -1.0)"),
    ]
    for table, message in refused:
        with pytest.raises(LoomError, match=re.escape(message)):
            validate(table, H100)


@given(made_tables(), st.data())
def test_one_operation_with_two_times_is_refused_and_with_one_is_not(table, data):
    row = data.draw(st.integers(0, len(table) - 1))
    twice = table.select(np.append(np.arange(len(table)), row))
    before = len(conflicts(table))
    assert len(conflicts(twice)) >= before
    times = table.select([row, row]).time_us * [1, 1.5]
    pair = build("t", ORIGIN, table.operations.select([row, row]), gpu="h100", time_us=times, model=table.model[row])
    with pytest.raises(LoomError, match=r"^t:3: .* takes .* us, but .* us in line 2$"):
        validate(pair, H100)


def row(**values):
    return make_operations([values])


def test_work_is_counted_as_published():
    # FlashAttention: 4 s^2 d heads; a causal mask leaves the half below the diagonal, and the diagonal
    whole = {"op": "attention_prefill", "batch": 2, "q_len": 1024, "heads": 8, "kv_heads": 2, "head_dim": 128}
    assert flops(row(**whole, causal=False)) == 4 * 2 * 8 * 128 * 1024**2
    assert flops(row(**whole)) == 2 * 2 * 8 * 128 * 1024 * 1025
    assert compulsory_bytes(row(**whole)) == 2 * 2 * 2 * 128 * 1024 * (8 + 2)
    assert flops(row(op="attention_decode", kv_len=999, heads=8, head_dim=64)) == 4 * 8 * 64 * 999
    assert compulsory_bytes(row(op="gemm", m=3, n=5, k=7, batch=2, dtype="fp8")) == 2 * (21 + 35 + 15)
    assert compulsory_bytes(row(op="silu_mul", m=3, n=5, dtype="fp16")) == 2 * 3 * 15
    # nccl-tests, doc/PERFORMANCE.md
    assert bus_bytes(row(op="all_reduce", gpus=8, bytes=800)) == 1400
    assert bus_bytes(row(op="reduce_scatter", gpus=8, bytes=800)) == 700
    assert link_bytes(row(op="all_reduce", gpus=8, bytes=800)) == 800


@given(st.lists(kernel, min_size=1, max_size=10))
def test_more_of_anything_is_never_less_work(rows):
    base = make_operations(rows)
    more = ("m", "kv_len", "bytes", "batch")
    grown = make_operations([{k: v * 2 if k in more else v for k, v in r.items()} for r in rows])
    for measure in (flops, compulsory_bytes, link_bytes, bus_bytes):
        assert (measure(grown) >= measure(base)).all()
    assert (least_seconds(base, H100) >= 0).all()
    assert all((floor.work >= 0).all() for floor in floors(base, H100))


@given(made_tables())
def test_the_split_keeps_families_whole(table):
    train, test = split(table)
    assert (train ^ test).all()
    o = table.operations
    family = list(zip(o.op, o.n, o.k, o.heads, o.gpus, strict=True))
    side = {}
    for key, judged in zip(family, test, strict=True):
        assert side.setdefault(key, judged) == judged


@pytest.mark.parametrize("name", tables.names())
def test_the_tables_of_the_package_read_and_say_where_they_come_from(name):
    table = tables.load(name)
    assert len(table) == table.provenance.rows > 50
    assert set(table.gpu.tolist()) == set(table.provenance.gpus)
    assert not conflicts(table)
    described = table.provenance
    assert described.commit
    assert described.details
    text = (tables.DATA / described.licence_file).read_text()
    assert described.licence.split("-")[0] in text.replace("BSD 3-Clause", "BSD").replace("Apache License", "Apache")


def test_the_package_brings_every_kind_of_operation_and_stays_small():
    assert sum(path.stat().st_size for path in tables.DATA.glob("*.csv.gz")) < 3e6
    found = {(str(op), gpu) for t in tables.all_tables() for op in set(t.operations.ops()) for gpu in t.provenance.gpus}
    for op in ("gemm", "attention_prefill", "attention_decode"):
        assert {gpu for o, gpu in found if o == op} >= {"a100", "h100", "h200"}
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "prefill", "decode"):
        assert {gpu for o, gpu in found if o == op} >= {"a100", "h100"}
    assert {o for o, _ in found} >= {"rmsnorm", "layernorm", "softmax", "silu_mul", "gelu", "add", "rope", "embedding"}


def test_tables_are_chosen_by_operation_gpu_and_fitness():
    for table in tables.all_tables("all_reduce", "h100"):
        assert set(table.operations.ops()) == {"all_reduce"}
        assert set(table.gpu.tolist()) == {"h100"}
    every, fit = ({t.name for t in tables.all_tables("gemm", "h100", fit=fit)} for fit in (False, True))
    assert every - fit == {"aiconfigurator-gemm-h100-vllm"}
    assert not list(tables.all_tables("gemm", "abacus"))
    with pytest.raises(LoomError, match="did you mean 'vidur-gemm-a100'"):
        tables.load("vidur-gem-a100")


@pytest.mark.checkout
def test_no_row_of_the_package_is_above_a_datasheet():
    from benchmarks.gpu_curator import LIMITS

    for table in tables.all_tables():
        validate(table, LIMITS)


@pytest.mark.checkout
def test_the_licence_texts_are_all_named():
    named = {t.provenance.licence_file for t in tables.all_tables()}
    named |= {describe_profile(PROFILES / name).licence_file for name in profile_names()}
    there = {f"LICENSES/{p.name}" for p in Path(tables.DATA / "LICENSES").iterdir()}
    assert named == there
