"""ONNX files: work, parameters and bytes against the library's models and closed forms, and what is refused."""

from __future__ import annotations

import sys
from collections import Counter
from math import prod
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.workloads.onnx_files import (
    DATA,
    OnnxWriter,
    attention,
    bert_layer,
    bottleneck,
    gelu,
    gpt2_layer,
    layer_norm,
    rms_norm,
)

from siliconloom.arch import DataType, LoomError
from siliconloom.arch.document import Document
from siliconloom.cli import main
from siliconloom.workloads import Attention, Gemm, Graph, Vector, load_workload
from siliconloom.workloads.load import read_workload

SIZES = [("batch", "2"), ("sequence", "8")]
RELAXED = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def described(text: str) -> Graph:
    return read_workload(Document.parse(f"kind: transformer\nprecision: fp32\n{text}", "t"), "t")


def functions(graph: Graph) -> Counter[str]:
    return Counter(
        {name: sum(o.repeat for o in graph.operators() if of(o) == name) for name in map(of, graph.operators())}
    )


def of(operator: object) -> str:
    return operator.function.value if isinstance(operator, Vector) else operator.kind


def layer_of(graph: Graph) -> list[object]:
    return [operator for operator in graph.operators() if operator.block == "layer"]


def weights_in(path: Path) -> int:
    """Numbers of all weights of a file, but of those that are single."""
    model = onnx.load(path, load_external_data=False)
    floats = [each.dims for each in model.graph.initializer if each.data_type == TensorProto.FLOAT]
    return sum(prod(dims) for dims in floats if prod(dims) > 1)


def refused(path: Path | str, sets: list[tuple[str, str]] | None = None) -> str:
    with pytest.raises(LoomError) as caught:
        load_workload(str(path), sets)
    text = str(caught.value)
    assert "\n" not in text
    return text


HEADS = "num_attention_heads: 4, num_hidden_layers: 2, hidden_size: 64"
MODELS = {
    "gpt2": "model: {model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 4, n_positions: 32, vocab_size: 96}",
    "llama": f"model: {{model_type: llama, {HEADS}, intermediate_size: 160, num_key_value_heads: 2, vocab_size: 96}}",
    "bert": f"model: {{model_type: bert, {HEADS}, intermediate_size: 256, vocab_size: 96, "
    "max_position_embeddings: 32}",
    "vit": f"model: {{model_type: vit, {HEADS}, intermediate_size: 256, image_size: 32, patch_size: 8}}",
}


@pytest.mark.parametrize("name", MODELS)
def test_exported_models_do_the_work_of_the_librarys(name):
    sets = SIZES if name != "vit" else SIZES[:1]
    graph = load_workload(str(DATA / f"{name}.onnx"), sets)
    length = "" if name == "vit" else "sequence: 8\n"
    same = described(f"batch: 2\n{length}{MODELS[name]}")
    every = 14 * 64 * 96 if name in ("gpt2", "llama") else 0  # the exported head takes all tokens, not each last one
    assert graph.macs == same.macs + every
    assert graph.unmasked_flops == same.unmasked_flops + 2 * every
    assert graph.precision is DataType.FP32
    assert not graph.explicit_precision
    assert sum(o.repeat for o in graph.operators() if isinstance(o, Attention)) == 2
    assert [o.shape for o in layer_of(graph) if isinstance(o, Attention)] == [
        o.shape for o in same.operators() if isinstance(o, Attention)
    ]
    twice = 64 * 96 - 2 * 64 * 9 if name == "gpt2" else 0  # a copy of the table as the head; its biases are zero
    assert graph.parameters == same.parameters + twice
    assert graph.weight_bytes == 4 * graph.parameters


def test_functions_of_an_exported_llama_are_found():
    found = functions(load_workload(str(DATA / "llama.onnx"), SIZES))
    expected = {"gemm": 15, "attention": 2, "rms_norm": 5, "rope": 4, "add": 4, "gated_silu": 2, "gather": 1}
    assert found == expected


def test_an_exported_resnet_50_has_its_published_work():
    path = DATA / "resnet50.onnx"
    graph, library = load_workload(str(path), [("batch", "1")]), load_workload("resnet50-conv")
    classifier = 2048 * 1000
    assert graph.macs == library.macs + classifier == 4_089_184_256
    assert graph.parameters == library.parameters + classifier + 1000 == weights_in(path)
    products = Counter[tuple[int, ...]]()
    for gemm in [o for o in library.operators() if isinstance(o, Gemm)]:
        products[gemm.m, gemm.n, gemm.k, gemm.batch] += gemm.repeat
    own = Counter({(1, 1000, 2048, 1): -1})
    for gemm in [o for o in graph.operators() if isinstance(o, Gemm)]:
        own[gemm.m, gemm.n, gemm.k, gemm.batch] += gemm.repeat
    assert +own == products
    assert functions(graph)["relu"] == 49
    assert graph.notes == ("a maximum of several numbers is timed as their sum",)
    assert len(graph.operators()) < 70  # equal blocks stand once
    assert load_workload(str(path), [("batch", "4")]).macs == 4 * graph.macs


@RELAXED
@given(
    batch=st.integers(1, 3),
    length=st.integers(2, 9),
    heads=st.integers(1, 4),
    width=st.sampled_from((2, 4, 16)),
    inner=st.integers(8, 40),
    primitive=st.booleans(),
)
def test_a_gpt2_layer_has_the_closed_forms_work(tmp_path, batch, length, heads, width, inner, primitive):
    file = gpt2_layer((batch, length), heads, width, inner, primitive=primitive)
    path = tmp_path / "layer.onnx"
    graph = load_workload(file.save(path, f"{file.nodes[-1].output[0]}"))
    hidden, tokens = heads * width, batch * length
    pairs = length * (length + 1) // 2
    assert graph.macs == tokens * hidden * (4 * hidden + 2 * inner) + 2 * batch * heads * pairs * width
    assert graph.unmasked_flops == 2 * tokens * (hidden * (4 * hidden + 2 * inner) + 2 * length * hidden)
    assert graph.parameters == 4 * hidden * (hidden + 1) + 2 * hidden * inner + inner + hidden + 4 * hidden
    found = functions(graph)
    assert found == {"gemm": 6, "attention": 1, "layer_norm": 2, "gelu": 1, "add": 2}
    assert graph.tokens == tokens


@RELAXED
@given(batch=st.integers(1, 3), length=st.integers(2, 9), heads=st.integers(1, 4), inner=st.integers(8, 40))
def test_a_bert_layer_has_the_closed_forms_work(tmp_path, batch, length, heads, inner):
    file = bert_layer((batch, length), heads, 8, inner)
    path = tmp_path / "layer.onnx"
    graph = load_workload(file.save(path, f"{file.nodes[-1].output[0]}"))
    hidden, tokens = heads * 8, batch * length
    assert graph.macs == tokens * (hidden * (4 * hidden + 2 * inner) + 2 * length * hidden)
    assert graph.parameters == weights_in(path)
    assert functions(graph) == {"gemm": 6, "attention": 1, "layer_norm": 2, "gelu": 1, "add": 2}


@RELAXED
@given(
    batch=st.integers(1, 3),
    size=st.integers(3, 12),
    channels=st.integers(2, 9),
    inner=st.integers(2, 9),
    stride=st.integers(1, 2),
)
def test_a_bottleneck_has_the_work_of_its_convolutions(tmp_path, batch, size, channels, inner, stride):
    file = bottleneck(batch, size, channels, inner, stride)
    path = tmp_path / "block.onnx"
    graph = load_workload(file.save(path, f"{file.nodes[-1].output[0]}"))
    outs = 4 * inner
    entries = [
        f"{{name: a, in_channels: {channels}, out_channels: {inner}, height: {size}, width: {size}, kernel: 1}}",
        f"{{name: b, in_channels: {inner}, out_channels: {inner}, height: {size}, width: {size}, kernel: 3, "
        f"stride: {stride}, padding: 1}}",
        f"{{name: d, in_channels: {channels}, out_channels: {outs}, height: {size}, width: {size}, kernel: 1, "
        f"stride: {stride}}}",
    ]
    text = f"kind: convolutions\nprecision: fp32\nbatch: {batch}\nconvolutions: [{', '.join(entries)}]"
    listed = read_workload(Document.parse(text, "t"), "t")
    after = -(-size // stride)
    assert graph.macs == listed.macs + batch * after**2 * inner * outs
    # a factor of each channel goes into the weights, a summand is left as a bias
    assert graph.parameters == listed.parameters + inner * outs + 2 * inner + 2 * outs
    assert functions(graph) == {"gemm": 4, "relu": 3, "add": 1}


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_heads_that_share_keys_are_counted(tmp_path, shared):
    file = OnnxWriter()
    made = attention(file, file.input("x", [2, 6, 32]), (2, 6), 4, 8, causal=False, kv_heads=4 // shared)
    graph = load_workload(file.save(tmp_path / "a.onnx", made))
    (found,) = [o for o in graph.operators() if isinstance(o, Attention)]
    assert (found.batch, found.heads, found.kv_heads, found.q_len, found.kv_len) == (2, 4, 4 // shared, 6, 6)
    assert (found.head_dim, found.v_head_dim, found.causal) == (8, 8, False)
    assert len(graph.dataflow.predecessors(found.name)) == 3


def test_scores_with_other_summands_than_masks_stay_in_parts(tmp_path):
    file = OnnxWriter()
    query, key, value = (file.input(name, [2, 4, 6, 8]) for name in "qkv")
    scores = file.node("MatMul", query, file.node("Transpose", key, perm=[0, 1, 3, 2]))
    biased = file.node("Add", scores, file.weight("distance", 4, 6, 6, value=0.5))
    made = file.node("MatMul", file.node("Softmax", biased, axis=-1), value)
    graph = load_workload(file.save(tmp_path / "a.onnx", made))
    assert functions(graph) == {"gemm": 2, "gather": 1, "add": 1, "softmax": 1}
    assert graph.macs == 2 * (8 * 6 * 6 * 8)
    assert graph.parameters == 4 * 6 * 6
    assert not any(o.weight for o in graph.operators() if isinstance(o, Gemm))


def test_functions_in_parts_are_found_by_their_values(tmp_path):
    file = OnnxWriter()
    x = file.input("x", [5, 16])
    x = gelu(file, rms_norm(file, "n", layer_norm(file, "l", x, 16, True), 16), "erf")
    x = file.node("Mul", x, file.node("Sigmoid", x))
    graph = load_workload(file.save(tmp_path / "a.onnx", x))
    assert [of(o) for o in graph.operators()] == ["layer_norm", "rms_norm", "gelu", "silu"]
    norm = next(o for o in graph.operators() if of(o) == "rms_norm")
    assert (norm.rows, norm.cols, norm.weights, norm.epsilon) == (5, 16, 16, pytest.approx(1e-6))


def test_a_depthwise_convolution_is_a_product_for_each_channel(tmp_path):
    file = OnnxWriter()
    made = file.node("Conv", file.input("x", [1, 6, 8, 8]), file.weight("w", 6, 1, 3, 3), group=6, pads=[1] * 4)
    (product,) = load_workload(file.save(tmp_path / "a.onnx", made)).operators()
    assert (product.m, product.n, product.k, product.batch, product.parameters) == (64, 1, 9, 6, 54)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(TensorProto.FLOAT16, DataType.FP16), (TensorProto.BFLOAT16, DataType.BF16), (TensorProto.FLOAT, DataType.FP32)],
)
def test_the_format_is_that_of_the_tensors(tmp_path, dtype, expected):
    file = OnnxWriter(opset=22, dtype=dtype)
    made = file.node("MatMul", file.input("x", [4, 8]), file.weight("w", 8, 16))
    path = file.save(tmp_path / "a.onnx", made)
    graph = load_workload(path)
    assert graph.precision is expected
    assert graph.weight_bytes == expected.size(128)
    assert load_workload(path, [("precision", "int8")]).weight_bytes == 128


def test_an_input_of_ones_and_fed_back_layers():
    """Layers of the exported files are one block, whose operators read what the last one of a layer makes."""
    graph = load_workload(str(DATA / "bert.onnx"), SIZES)
    assert [(block, repeat) for block, repeat, _ in graph.blocks()] == [("graph", 1), ("layer", 2), ("graph_2", 1)]
    assert graph.kv_bytes == 0


def chain(*kinds: str, **attributes: object) -> OnnxWriter:
    file = OnnxWriter()
    x = file.input("x", [4, 8])
    for kind in kinds:
        x = file.node(kind, x, **attributes)
    return file


def test_nodes_that_no_result_depends_on_take_no_time(tmp_path):
    """They were timed, as whoever runs the file would leave them out."""
    file = OnnxWriter()
    x = file.input("x", [4, 8])
    used = file.node("Relu", x)
    file.node("Tanh", file.node("Add", used, x))
    graph = load_workload(str(file.save(tmp_path / "a.onnx", used)))
    assert [each.function.value for each in graph.operators()] == ["relu"]


@pytest.mark.parametrize("kind", ["Exp", "Sigmoid", "Sqrt", "Erf", "HardSwish", "Abs", "Reciprocal", "CumSum"])
def test_operators_without_a_meaning_are_refused_by_node_and_kind(tmp_path, kind):
    file = OnnxWriter()
    inputs = [file.input("x", [4, 8]), *([file.numbers("axis", 1)] if kind == "CumSum" else [])]
    path = file.save(tmp_path / "a.onnx", file.node(kind, *inputs))
    text = refused(path)
    assert text.startswith(f"not supported: the ONNX operator {kind} (")
    assert str(path) in text
    assert f"node {kind.lower()}_0 ({kind})" in text


def test_files_that_cannot_be_read_are_refused_in_a_line(tmp_path):
    path = tmp_path / "a.onnx"
    whole = chain("Relu").model("relu_0_out").SerializeToString()
    for raw in (b"", b"\x08\x07\xff", b"not an ONNX file", whole[: len(whole) // 2]):
        path.write_bytes(raw)
        assert "no sound ONNX file" in refused(path)
    assert "no such file" in refused(tmp_path / "none.onnx")
    (tmp_path / "folder.onnx").mkdir()
    assert "is a folder" in refused(tmp_path / "folder.onnx")


def test_models_that_are_not_sound_are_refused_in_a_line(tmp_path):
    def saved(file: OnnxWriter, *outputs: str, opset: int | None = None, domain: str = "") -> Path:
        model = file.model(*outputs)
        if opset is not None:
            model.opset_import[0].version = opset
        model.graph.node[0].domain = domain
        onnx.save(model, tmp_path / "a.onnx")
        return tmp_path / "a.onnx"

    assert "(opset); versions 9 to" in refused(saved(chain("Relu"), "relu_0_out", opset=400))
    assert "operators of com.microsoft, Relu" in refused(saved(chain("Relu"), "relu_0_out", domain="com.microsoft"))
    assert "has no such operator" in refused(saved(chain("Nonsense"), "nonsense_0_out"))
    assert "no node makes its output y" in refused(saved(chain("Relu"), "y"))
    file = OnnxWriter()
    made = file.node("MatMul", file.input("x", [4, 8]), file.weight("w", 9, 16))
    assert "it is not sound" in refused(saved(file, made))
    file = OnnxWriter()
    assert "its input y is made by no node before it" in refused(saved(file, file.node("Relu", "y")))
    file = OnnxWriter()
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"])], "b", [], [helper.make_empty_tensor_value_info("r")]
    )
    made = file.node("If", file.input("c", [], TensorProto.BOOL), then_branch=branch, else_branch=branch)
    assert "control flow in ONNX models, If" in refused(saved(file, made))
    file = OnnxWriter()
    assert "shape depends on values" in refused(saved(file, file.node("NonZero", file.input("x", [4, 8]))))


def test_values_that_lie_in_a_missing_file_are_named_where_they_are_needed(tmp_path):
    file = OnnxWriter()
    made = file.node("Reshape", file.input("x", [4, 8]), file.numbers("shape", [8, 4]))
    model = file.model(file.node("Relu", made))
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone")
    onnx.save(model, tmp_path / "a.onnx")
    assert "shapes depend on shape, whose values lie in a file that is not there" in refused(tmp_path / "a.onnx")


def test_open_dimensions_need_sizes_and_others_take_none(tmp_path):
    path = DATA / "gpt2.onnx"
    text = refused(path)
    assert "have no size: batch, sequence; give each one, as --set workload.dimensions.batch=1" in text
    named = load_workload(str(path), [("dimensions.batch", "2"), ("dimensions.sequence", "8")])
    assert named.macs == load_workload(str(path), SIZES).macs
    assert "give this dimension here or as batch" in refused(path, [*SIZES, ("dimensions.batch", "2")])
    assert "no dimension of" in refused(path, [*SIZES, ("dimensions.other", "2")])
    file = chain("Relu")
    own = file.save(tmp_path / "a.onnx", "relu_0_out")
    assert "its inputs have all sizes" in refused(own, [("batch", "2")])
    file = OnnxWriter()
    file.node("Relu", file.input("x", [None, 8]))
    unnamed = file.save(tmp_path / "b.onnx", "relu_0_out")
    assert "workload.dimensions.x_0=1" in refused(unnamed)
    assert load_workload(unnamed, [("dimensions.x_0", "3")]).operators()[0].rows == 3


@pytest.mark.parametrize("key", ["phase=decode", "context=8", "layers=1", "weight_group=4", "model.n_embd=4"])
def test_keys_of_other_workloads_are_refused(key):
    path, value = key.split("=")
    assert path.split(".")[0] in refused(DATA / "gpt2.onnx", [*SIZES, (path, value)])


def test_a_description_names_a_file_beside_it(tmp_path):
    chain("Relu").save(tmp_path / "a.onnx", "relu_0_out")
    (tmp_path / "w.yaml").write_text("kind: onnx\nname: mine\nfile: a.onnx\nprecision: bf16\n")
    graph = load_workload(str(tmp_path / "w.yaml"))
    assert (graph.name, graph.precision, graph.explicit_precision) == ("mine", DataType.BF16, True)


def test_the_package_is_named_with_the_extra_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "need the package onnx: pip install 'siliconloom[onnx]'" in refused(DATA / "gpt2.onnx", SIZES)


@pytest.mark.parametrize(
    "command", ["workload", "sim npu-edge", "sim h100", "map npu-edge", "compare npu-edge --gpu h100"]
)
def test_commands_take_onnx_files(command, capsys):
    words = command.split()
    where = 2 if words[0] != "workload" else 1
    sets = ["--set", "workload.batch=1", "--set", "workload.sequence=8"]
    assert main([*words[:where], str(DATA / "gpt2.onnx"), *words[where:], *sets]) == 0
    assert "node_" in capsys.readouterr().out or words[0] == "compare"


def test_values_are_refused(capsys):
    assert main(["run", "npu-edge", str(DATA / "gpt2.onnx")]) == 2
    assert "not supported: values of ONNX models" in capsys.readouterr().err
