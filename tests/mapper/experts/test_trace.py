"""Traces of routing from files: both formats, and what is wrong with them in one line."""

import gzip
import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.arch.budget import TooLarge, own_memory, set_memory
from siliconloom.arch.inputs import files_read, forget_files_read
from siliconloom.mapper.experts import ModelRouting, loads_of, read_trace

SMALL = ModelRouting("small", layers=2, experts=8, chosen=2)
SINGLE = ModelRouting("single", layers=3, experts=4, chosen=1)


def picks_of(seed, tokens, model):
    order = np.argsort(np.random.default_rng(seed).random((tokens, model.layers, model.experts)), axis=2)
    return order[:, :, : model.chosen]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 30), st.sampled_from([SMALL, SINGLE]), st.sampled_from(["u1", "<i8", ">u2"]))
def test_text_and_numpy_files_say_the_same(tmp_path_factory, seed, tokens, model, dtype):
    folder = tmp_path_factory.mktemp("traces")
    picks = picks_of(seed, tokens, model)
    flat = picks.reshape(tokens, -1)
    np.savetxt(folder / "a.csv", flat, fmt="%d", delimiter=",")
    np.savetxt(folder / "a.txt", flat, fmt="%d")
    np.save(folder / "a.npy", picks.astype(dtype))
    np.save(folder / "flat.npy", np.asfortranarray(flat.astype(dtype)))
    (folder / "a.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes()))
    for name in ("a.csv", "a.txt", "a.npy", "flat.npy", "a.csv.gz"):
        found = read_trace(str(folder / name), model)
        assert found.tokens == tokens
        np.testing.assert_array_equal(found.loads, loads_of(picks, model.experts))
    assert (
        read_trace(str(folder / "a.npy"), model).digest == hashlib.sha256((folder / "a.npy").read_bytes()).hexdigest()
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.csv: the trace is empty"),
        ("\n \n", "t.csv: the trace is empty"),
        ("0,1,2,3\n0,1,2\n", "t.csv:2:1: has 3 numbers, a token of small has 4: 2 layers with 2 experts of a token"),
        ("0,1,2,3\n\n0,1,2,8\n", "t.csv:3:1: layer 1: must be an expert of small, from 0 to 7 (got 8)"),
        ("0,1,2,-1\n", "t.csv:1:7: must be the number of an expert (got '-1')"),
        ("0,1,2,1e0\n", "t.csv:1:7: must be the number of an expert (got '1e0')"),
        ("a,b,c,d\n0,1,2,3\n", "t.csv:1:1: must be the number of an expert (got 'a')"),
        ("0,1,2,\uff13\n", "t.csv:1:7: must be the number of an expert"),
        ("0,1,2,99999999999999999999\n", "t.csv:1:7: must be the number of an expert"),
        ("0,1,,3\n", "t.csv:1:1: has a comma without a number beside it"),
        ("0,1,2,3,\n", "t.csv:1:1: has a comma without a number beside it"),
        ("0,1,2,3\n4,4,1,2\n", "t.csv:2:1: layer 0: a token uses an expert of a layer once (got 4)"),
    ],
)
def test_what_is_wrong_with_text_is_said_with_its_line(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(LoomError) as caught:
        read_trace("t.csv", SMALL)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((3, 2, 2)), "must be integers, the numbers of experts (got float64)"),
        (np.zeros((0, 2, 2), int), "the trace is empty (0 x 2 x 2)"),
        (np.array(3), "the trace is empty (a single number)"),
        (
            np.zeros((3, 2), int),
            "has 3 x 2 numbers; a token of small has 2 layers with 2 experts of a token (or 4 numbers",
        ),
        (np.full((3, 4), -1), "[0, 0]: must be an expert of small, from 0 to 7 (got -1)"),
        (np.full((3, 4), 2**63, np.uint64), "[0, 0]: must be an expert of small, from 0 to 7"),
        (np.array([[0, 1, 2, 3], [0, 1, 5, 5]]), "[1, 1]: a token uses an expert of a layer once (got 5)"),
    ],
)
def test_what_is_wrong_with_an_array_is_said(tmp_path, monkeypatch, array, said):
    monkeypatch.chdir(tmp_path)
    np.save("t.npy", array)
    with pytest.raises(LoomError) as caught:
        read_trace("t.npy", SMALL)
    assert str(caught.value).startswith(f"t.npy: {said}")


def test_a_header_is_not_believed(tmp_path, monkeypatch):
    """It says a million million tokens; the file has four."""
    monkeypatch.chdir(tmp_path)
    np.save("t.npy", np.zeros((4, 4), np.uint8))
    raw = (tmp_path / "t.npy").read_bytes()
    for bad in (
        raw[:-1],
        raw + b"\0",
        raw.replace(b"(4, 4), }        ", b"(99999999, 4), } "),
        raw.replace(b"'shape'", b"'shade'"),
        raw[:20],
        raw[:6] + b"\x09\x09" + raw[8:],
        b"0,1,2,3\n",
    ):
        (tmp_path / "t.npy").write_bytes(bad)
        with pytest.raises(LoomError, match=r"^t\.npy: "):
            read_trace("t.npy", SMALL)
    np.save("t.npy", np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(LoomError, match="must be integers"):
        read_trace("t.npy", SMALL)


def test_files_that_are_no_traces_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoomError, match="is a folder, a trace of routing was expected"):
        read_trace(str(tmp_path), SMALL)
    with pytest.raises(LoomError, match=r"none\.csv: cannot be read"):
        read_trace("none.csv", SMALL)
    (tmp_path / "latin.csv").write_bytes(b"0,1,2,\xff\n")
    with pytest.raises(LoomError, match="is not UTF-8 text"):
        read_trace("latin.csv", SMALL)


def test_a_long_trace_asks_for_memory_first(tmp_path):
    np.save(tmp_path / "long.npy", np.tile(np.array([[0, 1, 2, 3]], np.uint8), (3_000_000, 1)))
    set_memory(str(own_memory() + (200 << 20)))
    try:
        with pytest.raises(TooLarge, match=r"long\.npy: 12,000,000 numbers: needs about"):
            read_trace(str(tmp_path / "long.npy"), SMALL)
    finally:
        set_memory(None)


def test_a_trace_is_an_input_that_no_result_replaces(tmp_path):
    (tmp_path / "t.csv").write_text("0,1,2,3\n")
    forget_files_read()
    read_trace(str(tmp_path / "t.csv"), SMALL)
    assert str(tmp_path / "t.csv") in files_read()
