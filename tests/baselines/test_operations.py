"""CSV files of operations: what is read, what is filled in, what is refused and with which words."""

import gzip
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import DescriptionError, LoomError
from siliconloom.baselines.cells import parse_cells
from siliconloom.baselines.operation_rows import make_operations, operations_from_cells, read_operations
from siliconloom.baselines.operations import COLUMNS, KERNELS, MASKED, Op, Operations
from tests.baselines.rows import kernel


def parse(text):
    return operations_from_cells(parse_cells("ops.csv", text, COLUMNS, ("op",)), KERNELS)


def equal(a: Operations, b: Operations):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS)


def csv(rows, order=COLUMNS):
    lines = [",".join(order)]
    for row in rows:
        lines.append(",".join(str(row.get(name, "")).lower() for name in order))
    return "\n".join(lines) + "\n"


@given(st.lists(kernel, min_size=1, max_size=20), st.permutations(COLUMNS))
def test_columns_may_stand_in_any_order_and_every_row_comes_back(rows, order):
    found = parse(csv(rows, order))
    assert equal(found, make_operations(rows))
    for index, row in enumerate(rows):
        said = {k: v for k, v in row.items() if k != "causal" or row["op"] in MASKED}
        assert found.row(index) == {k: v for k, v in said.items() if (k, v) != ("dealt", "even")}


@pytest.mark.slow(seconds=1)
@given(st.lists(kernel, min_size=1, max_size=10))
def test_blank_lines_spaces_and_quotes_change_nothing(rows):
    plain = csv(rows)
    spaced = plain.replace(",", " , ").replace("\n", "\n\n")
    quoted = "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in plain.splitlines())
    assert equal(parse(plain), parse(spaced))
    assert equal(parse(plain), parse(quoted))


def test_what_is_left_empty_is_filled_in():
    found = parse(
        "op,m,n,k,q_len,kv_len,heads,head_dim,gpus,bytes\n"
        "gemm,1,2,3,,,,,,\nattention_prefill,,,,64,,8,128,,\nattention_decode,,,,,99,8,64,,\nall_reduce,,,,,,,,8,1024\n"
    )
    assert found.row(0) == {"op": "gemm", "m": 1, "n": 2, "k": 3, "batch": 1, "dtype": "bf16"}
    assert found.row(1) == {
        "op": "attention_prefill",
        "batch": 1,
        "q_len": 64,
        "kv_len": 64,
        "heads": 8,
        "kv_heads": 8,
        "head_dim": 128,
        "causal": True,
        "dtype": "bf16",
    }
    assert (found.row(2)["q_len"], found.row(2)["kv_heads"]) == (1, 8)
    assert found.row(3) == {"op": "all_reduce", "gpus": 8, "bytes": 1024, "dtype": "bf16"}
    assert found.batch.tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("written", ["bfloat16", "BF16", "bf16"])
def test_other_names_of_formats_are_known(written):
    assert parse(f"op,m,n,k,dtype\ngemm,1,1,1,{written}\n").dtypes() == ["bf16"]


def test_whole_numbers_may_be_written_as_reals_and_columns_not_meant_are_passed_over():
    found = parse("op,m,n,k,bytes,gpus\ngemm,4096.0,1e3,8,0,1\n")
    assert found.row(0) == {"op": "gemm", "m": 4096, "n": 1000, "k": 8, "batch": 1, "dtype": "bf16"}


G = "op,m,n,k\n"
A = "op,q_len,kv_len,heads,kv_heads,head_dim,causal\n"
BAD = [
    ("", "ops.csv:1:1: the file is empty; its first line must name the columns"),
    ("\n\n", "ops.csv:1:1: the file is empty; its first line must name the columns"),
    (G, "ops.csv:1:1: there are no rows below the header"),
    ("m,n,k\n1,1,1\n", "ops.csv:1:1: the column 'op' is missing"),
    ("op,m,m\ngemm,1,1\n", "ops.csv:1:1: m: the column is given twice"),
    (
        "op,m,kvlen\ngemm,1,1\n",
        f"ops.csv:1:6: kvlen: unknown column; known: {', '.join(COLUMNS)}; did you mean 'kv_len'?",
    ),
    (G + "gemm,1,2\n", "ops.csv:2:1: has 3 cells, the header names 4 columns"),
    (G + "gemm,1,1,1\ngemm,1,-4,1\n", "ops.csv:3:8: n: must not be negative (got '-4')"),
    (G + "gemm,1,0,1\n", "ops.csv:2:8: n: must be at least 1 (got 0)"),
    (G + "gemm,nan,1,1\n", "ops.csv:2:6: m: must be a whole number (got 'nan')"),
    (G + "gemm,1,1,inf\n", "ops.csv:2:10: k: must be a whole number (got 'inf')"),
    (G + "gemm,1.5,1,1\n", "ops.csv:2:6: m: must be a whole number (got '1.5')"),
    (G + "gemm,many,1,1\n", "ops.csv:2:6: m: must be a whole number (got 'many')"),
    (G + f"gemm,{10**30},1,1\n", f"ops.csv:2:6: m: must be at most {2**31 - 1} (got '{10**30}')"),
    (G + "gemm,1,,1\n", "ops.csv:2:8: n: gemm needs it"),
    ("op,m,n\ngemm,1,1\n", "ops.csv:2:1: k: gemm needs it"),
    (G + "gem,1,1,1\n", "did you mean 'gemm'?"),
    (G + ",1,1,1\n", "ops.csv:2:1: op: must be one of gemm, "),
    (G + "serve,1,1,1\n", "ops.csv:2:1: op: must be one of gemm, "),
    (
        "op,m,n,k,dtype\ngemm,1,1,1,bf61\n",
        "dtype: must be one of fp64, fp32, tf32, fp16, bf16, fp8, int8, fp4, int4 (got 'bf61'); did you mean 'bf16'?",
    ),
    (
        A + "attention_prefill,8,8,12,5,64,\n",
        "ops.csv:2:23: heads: must be a multiple of kv_heads (got heads 12, kv_heads 5)",
    ),
    (
        A + "attention_prefill,8,4,12,4,64,true\n",
        "ops.csv:2:21: kv_len: must be at least q_len when attention is causal (got kv_len 4, q_len 8)",
    ),
    (A + "attention_prefill,8,8,12,4,64,maybe\n", "ops.csv:2:31: causal: must be true or false (got 'maybe')"),
    (A + "attention_decode,,,8,8,64,\n", "ops.csv:2:19: kv_len: attention_decode needs it"),
    ("op,gpus,bytes\nall_reduce,1,8\n", "ops.csv:2:12: gpus: all_reduce needs at least 2 GPUs (got 1)"),
    ("op,gpus,bytes\nall_reduce,8,\n", "ops.csv:2:14: bytes: all_reduce needs it"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_input_is_one_line_with_place_rule_and_value(text, message):
    with pytest.raises(DescriptionError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.lists(kernel, min_size=1, max_size=8), st.data())
def test_an_error_points_at_the_broken_cell(rows, data):
    lines = csv(rows).splitlines()
    line = data.draw(st.integers(1, len(rows)))
    column = data.draw(st.integers(0, len(COLUMNS) - 1))
    cells = lines[line].split(",")
    cells[column] = "?!"
    lines[line] = ",".join(cells)
    with pytest.raises(DescriptionError) as caught:
        parse("\n".join(lines))
    start = len(",".join(cells[:column])) + (2 if column else 1)
    assert str(caught.value.position) == f"ops.csv:{line + 1}:{start}"
    assert caught.value.path == COLUMNS[column]
    assert caught.value.value == "?!"


def test_files_gzipped_files_and_files_that_are_none(tmp_path):
    text = csv([{"op": "gemm", "m": 1, "n": 2, "k": 3}])
    (tmp_path / "a.csv").write_text("\ufeff" + text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.csv.gz").write_bytes(b"no gzip")
    (tmp_path / "c.csv").write_bytes(b"\xff\xfe\x00")
    assert equal(read_operations(tmp_path / "a.csv"), read_operations(tmp_path / "a.csv.gz"))
    for name, words in (("b.csv.gz", "gzip"), ("c.csv", "not UTF-8"), ("d.csv", "No such file"), (".", "is a folder")):
        with pytest.raises(LoomError, match=words):
            read_operations(tmp_path / name)


def test_standard_input(monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("op,m,n,k\ngemm,1,2,3\ngemm,1,2,x\n"))
    with pytest.raises(DescriptionError, match="<standard input>:3:10: k: must be a whole number"):
        read_operations("-")


@pytest.mark.slow(seconds=1)
def test_a_hundred_thousand_rows_are_read(tmp_path):
    random = np.random.default_rng(1)
    shapes = random.integers(1, 99999, (100_000, 3))
    rows = "\n".join(f"gemm,{a},{b},{c},,,,,,,,bf16" + (len(COLUMNS) - 12) * "," for a, b, c in shapes.tolist())
    (tmp_path / "ops.csv").write_text(",".join(COLUMNS) + "\n" + rows)
    found = read_operations(tmp_path / "ops.csv")
    assert np.array_equal(np.stack([found.m, found.n, found.k], axis=1), shapes)
    assert found.among(Op.GEMM).all()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"op": "gemm", "dealt": "chance"},
            "dealt: how rows are dealt to the experts of grouped products, not of gemm",
        ),
        ({"op": "gemm", "top_k": 2}, "top_k: how many experts of grouped products a token draws, not of gemm"),
        (
            {"op": "grouped_gemm", "batch": 8, "top_k": 2},
            "top_k: a token draws experts where rows are dealt by chance (dealt) (got 2)",
        ),
        (
            {"op": "grouped_gemm", "m": 6, "batch": 2, "dealt": "chance", "top_k": 3},
            "top_k: must be no more than the experts (batch)",
        ),
        ({"op": "grouped_gemm", "m": 5, "batch": 8, "dealt": "chance", "top_k": 2}, "top_k: must divide the rows (m)"),
        ({"op": "rmsnorm", "weights": "int4"}, "weights: a format of the weights of products, not of rmsnorm"),
        (
            {"op": "gemm", "group": 32},
            "group: rows of packed weights that share a scale, not of weights that are not packed",
        ),
        ({"op": "gemm", "cache": "fp8"}, "cache: a format of keys and values, of attention, not of gemm"),
        ({"op": "add", "sparsity": "2of4"}, "sparsity: zeros among the weights of products, not of add"),
    ],
)
def test_formats_of_other_operations_are_refused(row, message):
    with pytest.raises(DescriptionError, match=re.escape(message)):
        parse(csv([{"m": 64, "n": 64, "k": 64} | row]))
