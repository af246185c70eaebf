"""GGUF files and Hugging Face folders: the same workload, the same parameters; one line for what is damaged."""

import os
from contextlib import suppress

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.execution.constants import constants_of, rope_base_of
from siliconloom.execution.files import FileWeights
from siliconloom.execution.walk import At
from siliconloom.execution.weights import shapes
from siliconloom.models.gguf import FORMATS, PLAIN, is_gguf, read_gguf
from siliconloom.workloads import load_workload
from tests.execution.models import logits_of
from tests.models.files import add_value, model_of, write_folder, write_gguf

FAMILIES = ["llama", "qwen2", "gpt2"]


def everything(path):
    """All parameters of a model, and its operators."""
    graph = load_workload(str(path), [("sequence", "4")])
    weights = FileWeights(graph, str(path))
    found = {
        (operator.name, execution, what): weights.find(At(operator.name, execution), operator, what, shape)
        for operator in graph.operators()
        for what, shape in shapes(operator).items()
        for execution in range(operator.repeat)
    }
    return graph, found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_and_a_folder_are_the_same_model(family, tied, tmp_path):
    config, tensors = model_of(family, tied)
    one = everything(write_gguf(tmp_path / "m.gguf", config, tensors))
    other = everything(write_folder(tmp_path / "m", config, tensors, shards=1 + tied))
    assert one[0].operators() == other[0].operators()
    assert one[1].keys() == other[1].keys()
    for key, values in one[1].items():
        np.testing.assert_array_equal(values, other[1][key])
    found = [constants_of(name, load_workload(name)) for name in (str(tmp_path / "m.gguf"), str(tmp_path / "m"))]
    assert found[0] == found[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_makes_the_logits_that_transformers_would(family, tmp_path):
    from siliconloom.execution.generation import RealText, head_of

    config, tensors = model_of(family)
    path = write_gguf(tmp_path / "m.gguf", config, tensors)
    graph = load_workload(str(path), [("sequence", "4")])
    text = RealText(graph, FileWeights(graph, str(path)), constants_of(str(path), graph))
    tokens = [5, 77, 130, 9, 201]
    text.next(tokens[:2])
    for token in tokens[2:]:  # the cache holds what was there
        text.next([token])
    found = text.reading.results[At(head_of(graph).name, 0)][0]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, logits_of(config, tensors, tokens), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_numbers_in_blocks_are_those_of_gguf(kind, tmp_path):
    config, tensors = model_of("llama")
    file = read_gguf(write_gguf(tmp_path / "m.gguf", config, tensors, kind=kind))
    of, name = GGMLQuantizationType[kind], "model.layers.1.mlp.down_proj.weight"
    expected = quants.dequantize(quants.quantize(tensors[name], of), of)
    np.testing.assert_array_equal(file.tensors["blk.1.ffn_down.weight"].read(), expected)


def test_sizes_of_blocks_are_those_of_gguf():
    for number, form in FORMATS.items():
        kind = GGMLQuantizationType(number)
        assert (form.name, form.values, form.size) == (kind.name, *quants.GGML_QUANT_SIZES[kind])
        assert form.name in PLAIN or kind in quants._type_traits


VALUES = st.one_of(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(min_size=1, max_size=20),  # the writer leaves empty ones out
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5),
    st.lists(st.text(max_size=5), min_size=1, max_size=5),
)


@pytest.mark.slow(seconds=2)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text("abc.", min_size=1, max_size=9), VALUES, max_size=8))
def test_metadata_is_read_as_it_was_written(tmp_path, metadata):
    path = tmp_path / "any.gguf"
    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add_value(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_gguf(path).metadata == {"general.architecture": "llama", **metadata}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    config, tensors = model_of("llama", layers=1)
    path = write_gguf(tmp_path_factory.mktemp("small") / "m.gguf", config, tensors)
    return path.read_bytes()


@pytest.mark.slow(seconds=1)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_refused_by_one_line_or_read(small, tmp_path, data):
    """Cut short or with other bytes in its header: never anything but `LoomError`."""
    path = tmp_path / "damaged.gguf"
    header = 9000
    changed = bytearray(small)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    path.write_bytes(changed[: data.draw(st.one_of(st.just(len(small)), st.integers(0, len(small))))])
    with suppress(LoomError):  # whose text is one line
        load_workload(str(path), [("sequence", "4")])


def refused(path):
    with pytest.raises(LoomError) as caught:
        everything(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


CHANGES = {
    "another architecture": ({"general.architecture": "mamba"}, "architecture mamba"),
    "a key that is missing": ({"llama.block_count": None}, "its metadata lacks llama.block_count"),
    "a key that is text": ({"llama.block_count": "two"}, "llama.block_count must be a whole number (got two)"),
    "experts": ({"llama.expert_count": 8}, "mixtures of experts"),
    "heads that do not divide": ({"llama.attention.head_count": 3}, "3 attention heads"),
    "another width": ({"llama.feed_forward_length": 128}, "blk.0.ffn_gate.weight is of shape [96, 64]"),
    "more layers": ({"llama.block_count": 3}, "needs model.layers.2."),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_metadata_that_does_not_fit_is_refused_by_one_line(kind, tmp_path):
    changes, text = CHANGES[kind]
    config, tensors = model_of("llama")
    said = refused(write_gguf(tmp_path / "m.gguf", config, tensors, changes=changes))
    assert text in said.replace("model.layers.0.mlp.gate_proj", "blk.0.ffn_gate")


def test_a_tensor_that_is_not_there_is_named(tmp_path):
    config, tensors = model_of("llama")
    gone = "model.layers.1.self_attn.k_proj.weight"
    assert gone in refused(write_gguf(tmp_path / "m.gguf", config, tensors, left_out=(gone,)))


def test_formats_that_nobody_knows_are_named(small, tmp_path):
    place = small.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8
    changed = bytearray(small)
    changed[place : place + 4] = (99).to_bytes(4, "little")
    (tmp_path / "m.gguf").write_bytes(changed)
    said = refused(tmp_path / "m.gguf")
    assert "token_embd.weight is stored in format number 99" in said
    assert "Q4_K" in said


OTHERS = {
    "attention.sliding_window": 2,
    "attention.causal": False,
    "attention.scale": 0.01,
    "attention.value_length": 8,
    "rope.dimension_count": 2,
    "rope.scaling.factor": 8.0,
    "rope.scale_linear": 8.0,
}
"""Keys with which a file is of another model than its tensors say."""


@pytest.mark.parametrize("key", OTHERS)
def test_keys_of_other_models_are_refused(tmp_path, key):
    config, tensors = model_of("llama")
    path = write_gguf(tmp_path / "m.gguf", config, tensors, changes={f"llama.{key}": OTHERS[key]})
    with pytest.raises(NotSupported, match=f"llama.{key} of {str(OTHERS[key]).removesuffix('.0')}"):
        load_workload(str(path), [("sequence", "4")])


def test_scaled_angles_have_a_time_and_no_values(tmp_path):
    config, tensors = model_of("llama")
    changes = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "m.gguf", config, tensors, changes=changes)
    assert load_workload(str(path), [("sequence", "4")]).operators()
    with pytest.raises(NotSupported, match="rotary angles are scaled"):
        rope_base_of(str(path))


def test_folders_that_are_not_whole_are_refused(tmp_path):
    config, tensors = model_of("llama")
    folder = write_folder(tmp_path / "m", config, tensors, shards=2)
    (folder / "model-1.safetensors").unlink()
    assert "model-1.safetensors: No such file" in refused(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b"}}')
    assert "files of its own folder" in refused(folder)
    (folder / "model.safetensors.index.json").unlink()
    assert "neither model.safetensors nor" in refused(folder)
    (folder / "config.json").unlink()
    assert "is a folder without the config.json" in refused(folder)


def test_a_package_that_is_missing_is_named_with_the_extra(tmp_path, monkeypatch):
    config, tensors = model_of("llama")
    file = read_gguf(write_gguf(tmp_path / "m.gguf", config, tensors, kind="Q8_0"))
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(LoomError, match=r"Q8_0 need the package gguf: pip install 'siliconloom\[models\]'"):
        file.tensors["blk.1.ffn_down.weight"].read()


def test_a_file_that_changes_is_read_again_and_a_pipe_is_left_alone(tmp_path):
    config, tensors = model_of("llama")
    path = tmp_path / "m.gguf"
    assert read_gguf(write_gguf(path, config, tensors)).metadata["llama.block_count"] == 2
    one, fewer = model_of("llama", layers=1)
    assert read_gguf(write_gguf(path, one, fewer)).metadata["llama.block_count"] == 1
    path.write_bytes(b"")
    with pytest.raises(LoomError, match="it has 0 B"):
        read_gguf(path)
    os.mkfifo(tmp_path / "pipe")
    assert not is_gguf(tmp_path / "pipe")  # which nobody writes to
