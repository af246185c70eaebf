"""GEMM lists, and convolutions against a brute-force im2col."""

from __future__ import annotations

from collections.abc import Callable

import numpy
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import DataType
from siliconloom.arch.document import Document
from siliconloom.workloads import Gemm, Graph, Phase, load_workload
from siliconloom.workloads.lists import convolution_graph

Loader = Callable[..., Graph]


def gemms(graph: Graph) -> list[Gemm]:
    return [operator for operator in graph.operators() if isinstance(operator, Gemm)]


def test_gpt2_block_has_the_work_of_the_model_without_a_mask() -> None:
    graph = load_workload("gpt2-block-gemms")
    assert graph.precision is DataType.INT8
    assert graph.explicit_precision
    assert graph.phase is Phase.PREFILL
    assert [gemm.name for gemm in gemms(graph)] == ["qkv", "scores", "context", "projection", "fc", "fc_proj"]
    model = load_workload("gpt2", [("layers", "1"), ("sequence", "1024")])
    assert graph.flops == model.unmasked_flops - 2 * 768 * 50257
    assert graph.parameters == 12 * 768**2


def test_resnet50_has_its_published_weights_and_work() -> None:
    graph = load_workload("resnet50-conv")
    assert graph.parameters == 23_454_912
    assert graph.macs == 4_087_136_256
    assert sum(gemm.repeat for gemm in gemms(graph)) == 53
    four = load_workload("resnet50-conv", [("batch", "4")])
    assert four.macs == 4 * graph.macs
    assert (four.batch, four.tokens) == (4, 4)


def test_entries_state_their_own_precision_and_repeat(load_text: Loader) -> None:
    graph = load_text(
        "kind: gemms\ngemms:\n- {name: a, m: 2, n: 3, k: 4, precision: fp16, repeat: 5, bias: true}\n"
        "- {name: b, m: 2, n: 3, k: 4, batch: 6, weight: false}\n"
    )
    first, second = gemms(graph)
    assert (first.precision, second.precision) == (DataType.FP16, DataType.BF16)
    assert graph.macs == 5 * 24 + 6 * 24
    assert graph.parameters == 5 * (12 + 3)
    assert not graph.explicit_precision
    assert graph.name == "workload"


def test_precision_override_reaches_a_list() -> None:
    graph = load_workload("gpt2-block-gemms", [("precision", "bf16"), ("gemms.0.m", "8")])
    assert {gemm.precision for gemm in gemms(graph)} == {DataType.BF16}
    assert gemms(graph)[0].m == 8


SMALL = st.integers(1, 4)


@given(
    channels=st.tuples(SMALL, SMALL, SMALL),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(SMALL, SMALL),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    batch=st.integers(1, 3),
)
def test_im2col_shape_equals_brute_force(
    channels: tuple[int, int, int],
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: int,
    dilation: int,
    batch: int,
) -> None:
    groups, inputs, outputs = channels
    if any(s + 2 * padding < dilation * (k - 1) + 1 for s, k in zip(size, kernel, strict=True)):
        return
    image = numpy.zeros((batch, inputs, size[0] + 2 * padding, size[1] + 2 * padding))
    patches = [
        image[
            sample,
            :,
            top : top + dilation * (kernel[0] - 1) + 1 : dilation,
            left : left + dilation * (kernel[1] - 1) + 1 : dilation,
        ].ravel()
        for sample in range(batch)
        for top in range(0, image.shape[2] - dilation * (kernel[0] - 1), stride[0])
        for left in range(0, image.shape[3] - dilation * (kernel[1] - 1), stride[1])
    ]
    document = Document.parse(
        f"{{kind: convolutions, batch: {batch}, convolutions: [{{name: c, in_channels: {groups * inputs}, "
        f"out_channels: {groups * outputs}, height: {size[0]}, width: {size[1]}, kernel: {list(kernel)}, "
        f"stride: {list(stride)}, padding: {padding}, dilation: {dilation}, groups: {groups}}}]}}"
    )
    (gemm,) = gemms(convolution_graph(document, "c"))
    assert (gemm.m, gemm.k) == numpy.array(patches).shape
    assert (gemm.n, gemm.batch) == (outputs, groups)
