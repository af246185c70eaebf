"""Weights from files: formats, names, shapes; and one clear line for every file that is not what it should be."""

import json
import struct
import zipfile

import numpy as np
import pytest

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.execution.files import FileWeights, interleaved
from siliconloom.execution.walk import At
from siliconloom.execution.weights import shapes
from tests.execution.models import config_of, graph_of, safetensors, tensors_of


@pytest.fixture(params=["gpt2", "llama"])
def model(request, tmp_path):
    config = config_of(request.param, 2, 1, 8, 2, tied=request.param == "gpt2")
    return graph_of(tmp_path, config, [("sequence", "4")]), tensors_of(config)


def everything(graph, weights):
    """All parameters of all executions."""
    return {
        (operator.name, execution, what): weights.find(At(operator.name, execution), operator, what, shape)
        for operator in graph.operators()
        for what, shape in shapes(operator).items()
        for execution in range(operator.repeat)
    }


@pytest.mark.parametrize(("format", "bits"), [("F16", 10), ("BF16", 7)])
def test_numbers_of_sixteen_bits_are_read_as_they_are(model, tmp_path, format, bits):
    graph, tensors = model
    exact, short = tmp_path / "a", tmp_path / "b"
    exact.write_bytes(safetensors(tensors))
    short.write_bytes(safetensors(tensors, format))
    whole, rounded = (everything(graph, FileWeights(graph, str(file))) for file in (exact, short))
    for key, value in whole.items():
        np.testing.assert_allclose(rounded[key], value, rtol=2.0**-bits, atol=1e-6)
        assert rounded[key].dtype.itemsize >= 4  # a column's scale is more than 16 bits hold


@pytest.mark.parametrize("name", ["gpt_neox.layers.0.attention", "transformer.h.0.self_attention"])
def test_queries_keys_and_values_that_take_turns_are_refused(model, tmp_path, name):
    """As GPT-NeoX and Falcon store them: of each head, or of each group of heads, one after the other."""
    graph, tensors = model
    file = tmp_path / "w.safetensors"
    file.write_bytes(safetensors(tensors | {f"{name}.query_key_value.weight": np.ones((4, 4), np.float32)}))
    with pytest.raises(NotSupported, match="weights whose queries, keys and values take turns by head") as caught:
        FileWeights(graph, str(file))
    assert f"{name}.query_key_value.weight" in str(caught.value)


def test_operators_own_names_hold_every_execution(model, tmp_path):
    graph, _ = model
    chance = np.random.default_rng(1)
    own = {
        f"{operator.name}.{what}": chance.normal(size=(operator.repeat, *shape) if operator.repeat > 1 else shape)
        for operator in graph.operators()
        for what, shape in shapes(operator).items()
    }
    np.savez(tmp_path / "w.npz", **own)
    found = everything(graph, FileWeights(graph, str(tmp_path / "w.npz")))
    for (name, execution, what), value in found.items():
        whole = own[f"{name}.{what}"]
        np.testing.assert_array_equal(value, whole[execution] if graph.dataflow[name].repeat > 1 else whole)


def test_buffers_and_a_tied_head_may_stand_beside_the_parameters(tmp_path):
    config = config_of("gpt2", 2, 2, 8, 2)
    graph, tensors = graph_of(tmp_path, config, [("sequence", "4")]), tensors_of(config)
    more = {f"transformer.{name}": value for name, value in tensors.items()}
    more |= {"transformer.h.0.attn.bias": np.ones((1, 1, 4, 4)), "lm_head.weight": tensors["wte.weight"]}
    (tmp_path / "w").write_bytes(safetensors(more))
    assert everything(graph, FileWeights(graph, str(tmp_path / "w")))


def test_halves_of_a_head_become_neighbours():
    rows = np.arange(16)
    assert interleaved(rows, 8).tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]


def renamed(tensors, name, change):
    return {change if key == name else key: value for key, value in tensors.items()}


BROKEN = {
    "missing": (lambda t: renamed(t, "h.1.attn.c_proj.bias", "x"), r"needs h\.1\.attn\.c_proj\.bias, which is not"),
    "too many": (lambda t: t | {"h.2.ln_1.weight": np.zeros(3)}, r"has no parameter h\.2\.ln_1\.weight; did you mean"),
    "shape": (lambda t: t | {"wpe.weight": np.zeros((7, 16))}, r"wpe\.weight is of shape \[7, 16\], and .* needs \[40"),
    "not finite": (
        lambda t: t | {"h.0.ln_1.bias": np.full(16, np.nan)},
        r"h\.0\.ln_1\.bias has values that are not fi",
    ),
    "too large": (
        lambda t: t | {"wpe.weight": t["wpe.weight"] * 1e35},
        r"wpe\.weight: its largest absolute value must",
    ),
    "too small": (
        lambda t: t | {"wpe.weight": t["wpe.weight"] * 1e-33},
        r"wpe\.weight: its largest absolute value must",
    ),
    "another head": (
        lambda t: t | {"lm_head.weight": t["wte.weight"] + 1},
        r"lm_head\.weight is another matrix than wte\.weight",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_parameters_that_are_not_the_models_are_named(tmp_path, kind):
    config = config_of("gpt2", 2, 2, 8, 2)
    graph, (change, text) = graph_of(tmp_path, config, [("sequence", "4")]), BROKEN[kind]
    (tmp_path / "w").write_bytes(safetensors(change(tensors_of(config))))
    with pytest.raises(LoomError, match=text):
        everything(graph, FileWeights(graph, str(tmp_path / "w")))


def header(text, data=b""):
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes):
    whole = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
    sound = {"dtype": "F32", "shape": [43, 16], "data_offsets": [8, 8 + 43 * 64]}
    return header(json.dumps({"wpe.weight": whole, "wte.weight": sound}).encode(), bytes(8 + 43 * 64))


FILES = {
    "empty": (b"", "neither a safetensors file nor an npz"),
    "text": (b"weights of my model, as text\n" * 9, "neither a safetensors file nor an npz"),
    "no json": (header(b"{x}"), "its header is not an object in JSON"),
    "a list": (header(b"[1]"), "its header is not an object in JSON"),
    "beyond the end": (entry(data_offsets=[0, 16000], shape=[4000]), "lies outside of the file"),
    "negative": (entry(shape=[-2]), "has no shape, or lies outside"),
    "no offsets": (entry(data_offsets=None), "has no shape, or lies outside"),
    "too few bytes": (entry(shape=[3]), r"wpe.weight has 8 B, and its shape \[3\] in F32 takes 12 B"),
    "integers": (entry(dtype="I64", shape=[1]), "wpe.weight is I64; weights are floating point"),
    "twice": (header(b'{"a": {}, "a": {}}'), "its header has a twice"),
    "a hole": (entry(data_offsets=[4, 12]), "wpe.weight leaves 4 B before it that nothing holds"),
    "behind": (entry() + b"more", "4 B behind its last tensor"),
    "two letters": (b"PK", "it is no zip archive"),
    "no zip": (b"PK\x03\x04 and no more", "no npz file that can be read"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_another_kind_is_one_clear_line(tmp_path, kind):
    graph = graph_of(tmp_path, config_of("gpt2", 2, 2, 8, 1), [("sequence", "4")])
    data, text = FILES[kind]
    file = tmp_path / "w"
    file.write_bytes(data)
    with pytest.raises(LoomError, match=text) as caught:
        FileWeights(graph, str(file))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(file))


def test_a_member_of_an_archive_that_is_no_array_is_named(tmp_path):
    graph = graph_of(tmp_path, config_of("gpt2", 2, 2, 8, 1), [("sequence", "4")])
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("a.txt", "no array")
    with pytest.raises(LoomError, match=r"its member a.txt is no array"):
        FileWeights(graph, str(tmp_path / "w.npz"))


def test_a_file_that_is_not_there_is_named(tmp_path):
    graph = graph_of(tmp_path, config_of("gpt2", 2, 2, 8, 1), [("sequence", "4")])
    with pytest.raises(LoomError, match="No such file"):
        FileWeights(graph, str(tmp_path / "nowhere"))
