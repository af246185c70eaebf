"""An encoder with a decoder on several chips: what plans hold, what they refuse, what they take."""

import json

import pytest

from siliconloom.arch import LoomError, load_system
from siliconloom.baselines.model import kernels_of
from siliconloom.cli import main
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.plan import read_plan_input
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.parallel import Split, share
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.search import search
from siliconloom.workloads import Collective, load_workload

MODELS = ("t5-base", "whisper-small")


@pytest.fixture(scope="module")
def cluster():
    return cluster_of(load_system("dgx-h100"))


def workload(name, phase, batch=8):
    return load_workload(name, [("phase", phase), ("batch", str(batch))])


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_holds_all_weights_and_both_caches(cluster, name, phase):
    """Of two chips' parts; in decode the encoder's parameters lie beside the decoder's."""
    graph = workload(name, phase)
    memory = Server(cluster, graph).step(Plan(data=4, tensor=2)).memory
    assert memory.weights == pytest.approx(graph.weight_bytes / 2, rel=0.02)
    assert memory.cache == pytest.approx(graph.kv_bytes / 8)


@pytest.mark.parametrize("name", MODELS)
def test_stages_of_decode_share_layers_and_hold_what_rests(cluster, name):
    graph = workload(name, "decode")
    planner = Server(cluster, graph)
    assert planner.depth == 12
    memory = planner.step(Plan(data=2, pipeline=4)).memory
    assert graph.weight_bytes / 4 < memory.weights < graph.weight_bytes / 2


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", MODELS)
def test_three_sums_a_layer_of_the_decoder_and_two_of_the_encoder(name, phase):
    graph = workload(name, phase)
    found = [o for o in share(graph, Split(4)).operators() if isinstance(o, Collective)]
    sums = {
        block: [o for o in found if o.block == block and o.operation == "all_reduce"] for block, _, _ in graph.blocks()
    }
    positions = 8 * (512 if name == "t5-base" else 1500)
    assert [o.elements for o in sums.get("encoder_layer", [])] == [positions * 768] * 2 * (phase == "prefill")
    tokens = 8 if phase == "decode" or name == "t5-base" else 4 * 8
    assert [o.elements for o in sums["decoder_layer"]] == [tokens * 768] * 3


def test_every_chip_does_all_of_the_convolutions_whoever_shares_norms_by_tokens():
    """The second one reads all of what the first one makes."""
    part = share(workload("whisper-small", "prefill"), Split(4, sequence=True)).dataflow
    assert [part[f"embedding.{name}"].output_elements for name in ("conv1", "gelu1", "conv2", "gelu2")] == [
        8 * 3000 * 768,
        8 * 3000 * 768,
        8 * 1500 * 768,
        8 * 1500 * 768,
    ]
    assert part["encoder_norm"].output_elements == 8 * 1500 * 768 // 4


@pytest.mark.parametrize(
    ("phase", "plan", "message"),
    [
        (
            "prefill",
            Plan(data=4, pipeline=2),
            "plan.pipeline 2 in prefill of t5-base, an encoder with a decoder: every",
        ),
        ("prefill", Plan(data=4, context=2), "plan.context 2 of t5-base, an encoder with a decoder: not supported"),
        ("decode", Plan(data=4, context=2), "plan.context 2 of t5-base"),
        ("decode", Plan(data=6, attention_chips=2), "plan.attention_chips 2 of t5-base"),
        ("prefill", Plan(data=4, tensor=2, overlap="tokens"), "plan.overlap tokens of t5-base"),
    ],
)
def test_what_is_for_layers_that_are_alike_is_refused(cluster, phase, plan, message):
    planner = Server(cluster, workload("t5-base", phase))
    with pytest.raises(LoomError) as caught:
        planner.check(plan)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_documents_and_next_tokens_are_refused(cluster):
    with pytest.raises(LoomError, match=r"plan\.documents of t5-base, an encoder with a decoder"):
        Server(cluster, workload("t5-base", "prefill"), [256, 256])
    with pytest.raises(LoomError, match=r"decode\. of t5-base, an encoder with a decoder: not supported"):
        read_plan_input("dgx-h100", "t5-base", [("workload.batch", "8"), ("decode.data", "8")])


def test_memory_that_computes_takes_one_attention_a_layer(capsys):
    assert main(["sim", "neupims", "t5-base", "--set", "workload.phase=decode"]) == 2
    said = capsys.readouterr().err
    assert "t5-base on a chip whose memory computes: its layers must be alike, each with one attention" in said


def test_a_search_finds_no_stages_for_a_prompt_and_says_how_many_sequences_would_do(cluster):
    with pytest.raises(LoomError, match="12 heads, one stage; a multiple of 2 sequences would"):
        search(Server(cluster, workload("t5-base", "prefill", 1)))
    with pytest.raises(LoomError, match=r"plan\.pipeline 2 in prefill of t5-base"):
        search(Server(cluster, workload("t5-base", "prefill")), {"pipeline": 2})
    found = search(Server(cluster, workload("t5-base", "prefill")))
    assert {each.plan.pipeline for each in found.best} == {1}
    later = search(Server(cluster, workload("t5-base", "decode")))
    assert max(each.plan.pipeline for each in later.best) > 1


def test_kernels_of_a_gpu_take_every_operator():
    graph = workload("t5-base", "prefill", 2)
    rows = {kernel.operator: kernel.row for kernel in kernels_of(graph)}
    assert rows["encoder_layer.score_bias"]["op"] == "add"
    assert (rows["encoder_layer.score_bias"]["m"], rows["encoder_layer.score_bias"]["n"]) == (2 * 12 * 512, 512)
    across = rows["decoder_layer.cross_attention"]
    assert (across["q_len"], across["kv_len"], across["causal"]) == (1, 512, "false")
    # an encoder's keys of this step are read as they were made, those of an earlier one as they are kept
    for phase, column in (("prefill", None), ("decode", "fp8")):
        kept = load_workload("t5-base", [("phase", phase), ("cache_precision", "fp8")])
        found = {k.operator: k.row for k in kernels_of(kept)}["decoder_layer.cross_attention"]
        assert found.get("cache") == column


def answered(tmp_path, *words):
    path = tmp_path / "result.json"
    assert main(["sim", *words, "--json", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("machine", ["h100", "npu-datacenter-x8"])
def test_what_stands_between_encoder_and_decoder_takes_time_and_energy(tmp_path, machine, name, phase):
    layers = ("num_layers", "num_decoder_layers") if name == "t5-base" else ("encoder_layers", "decoder_layers")
    sets = [f"workload.model.{each}=1" for each in layers] + [f"workload.phase={phase}"]
    found = answered(tmp_path, machine, name, *(word for each in sets for word in ("--set", each)))
    rows = found["operators"]
    assert found["seconds"] == pytest.approx(sum(row["seconds"] for row in rows), rel=1e-6)
    waits = found["energy"].get("idle_chips", 0.0)
    assert found["energy_j"] == pytest.approx(sum(row["energy_j"] for row in rows) + waits, rel=1e-6)
    assert found["macs"] == sum(row["macs"] for row in rows)


@pytest.mark.slow(seconds=1)
def test_a_plan_of_one_chip_takes_what_the_chip_takes(tmp_path):
    sizes = {"d_model": 64, "d_kv": 8, "d_ff": 256, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 8}
    model = tmp_path / "tiny.json"
    model.write_text(json.dumps({"model_type": "t5", **sizes, "vocab_size": 200, "feed_forward_proj": "gated-gelu"}))
    chip, planned = (answered(tmp_path, name, str(model)) for name in ("npu-datacenter", "npu-datacenter-x8"))
    assert planned["cycles"] == chip["cycles"]
    working = planned["energy_j"] - planned["energy"]["idle_chips"]
    assert working == pytest.approx(chip["energy_j"], rel=1e-6)
