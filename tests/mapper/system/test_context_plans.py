"""Context parallelism inside plans: volumes, floors, balance, links of GPUs and of our own chips."""

import pytest

from siliconloom.arch import LoomError, load_system
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.search import plans
from siliconloom.mapper.system.training import Trainer
from siliconloom.workloads import load_workload

SCHEMES = ["ring", "zigzag", "striped", "token_ring", "ulysses", "all_gather", "lightseq", "hybrid"]


@pytest.fixture(scope="module")
def trainer():
    sets = [("phase", "training"), ("batch", "1"), ("sequence", "65536"), ("layers", "2")]
    return Trainer(cluster_of(load_system("dgx-h100")), load_workload("llama3-8b", sets))


def step(trainer, scheme="ring", **choices):
    return trainer.step(Plan(context=8, context_scheme=scheme, context_heads=4, zero=1, **choices))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_shares_the_work(trainer, scheme):
    found = step(trainer, scheme)
    assert found.seconds >= trainer.bound
    assert found.exposed > 0
    assert found.memory.activations * 7 < 8 * step(trainer, "ring").memory.activations


def test_balanced_rings_are_faster_under_a_causal_mask(trainer):
    """With contiguous runs the last rank does 15 / 8 of the mean work (2 - 1 / n)."""
    plain, balanced = step(trainer, "ring"), step(trainer, "zigzag")
    assert balanced.seconds < plain.seconds
    assert step(trainer, "striped").seconds == pytest.approx(balanced.seconds, rel=0.02)


def test_a_slow_link_is_not_hidden(trainer):
    sets = [("link.bandwidth", "500 MB/s"), ("link.count", "1")]
    slow = Trainer(cluster_of(load_system("dgx-h100", sets)), trainer.graph)
    assert step(slow, "zigzag").exposed > step(trainer, "zigzag").exposed * 5


@pytest.mark.slow(seconds=3)
def test_our_chips_share_a_prompt(tmp_path):
    path = tmp_path / "four.yaml"
    path.write_text(
        "kind: system\nname: four\nchips: [{chip: npu-datacenter, count: 4}]\ntopology: {kind: ring}\n"
        "link: {bandwidth: 50 GB/s, latency: 500 ns}\n"
    )
    server = Server(cluster_of(load_system(str(path))), load_workload("gpt3-7b", [("batch", "1"), ("layers", "2")]))
    alone = server.step(Plan(pipeline=2, data=1, tensor=2, microbatch=0))
    shared = server.step(Plan(context=4, context_scheme="zigzag", microbatch=0))
    assert server.bound <= shared.seconds < alone.seconds


def test_the_search_tries_context_for_long_sequences_only(trainer):
    assert {p.context for p in plans(trainer, {})} == {1, 2, 4, 8}
    short = Trainer(trainer.cluster, load_workload("llama3-8b", [("phase", "training"), ("batch", "8")]))
    assert {p.context for p in plans(short, {})} == {1}


def test_heads_that_do_not_divide_are_said(trainer):
    graph = load_workload("gpt2-xl", [("batch", "1"), ("sequence", "1024")])  # 25 heads
    with pytest.raises(LoomError, match=r"25.*heads|heads.*25"):
        Server(trainer.cluster, graph).step(Plan(context=8, context_scheme="ulysses", microbatch=0))


def pooled(trainer, chips, **choices):
    """Attention on the last ``chips`` of the node."""
    planner = Trainer(
        trainer.cluster,
        load_workload("llama3-8b", [("phase", "training"), ("batch", "8"), ("sequence", "16384"), ("layers", "4")]),
    )
    return planner, planner.step(Plan(data=8 - chips, microbatch=8 // (8 - chips), attention_chips=chips, **choices))


def test_attention_can_be_done_elsewhere(trainer):
    """Workers and pool both keep their floors: the rest of a layer, and all attention over the pool's chips."""
    planner, found = pooled(trainer, 4)
    line = planner.step(Plan(data=8, microbatch=1))
    blocks = planner.model(Plan(data=4, microbatch=2), 2).blocks
    rest = sum(b.repeat * (b.forward - b.attention) for b in blocks)
    assert found.seconds > planner.bound
    assert found.pipeline > rest
    assert found.seconds < 4 * line.seconds
    assert found.exposed > 0


def test_a_pool_that_cannot_be_halved_waits(trainer):
    planner, _ = pooled(trainer, 4)
    plans = [Plan(data=4, microbatch=m, attention_chips=4) for m in (1, 2)]
    whole, halves = (planner.step(p).pipeline for p in plans)
    assert halves < whole


def test_what_a_pool_does_not_do_is_said(trainer):
    graph = load_workload("llama3-8b", [("phase", "decode"), ("batch", "8"), ("layers", "2")])
    with pytest.raises(LoomError, match=r"not supported: plan\.attention_chips in decode"):
        Server(trainer.cluster, graph).step(Plan(data=4, attention_chips=4, microbatch=0))
    with pytest.raises(LoomError, match=r"and 3 for attention is 7 chips, dgx-h100 has 8"):
        Server(trainer.cluster, graph).step(Plan(data=4, attention_chips=3, microbatch=0))


def test_documents_are_shared_as_they_fit(trainer):
    """Short documents lie on a chip each; every scheme computes the pairs of documents only."""
    documents = [16384, 16384, 8192, 8192, 8192, 8192]
    several = Trainer(trainer.cluster, trainer.graph, documents)
    assert several.macs < trainer.macs
    steps = {s: several.step(Plan(context=8, context_scheme=s, zero=1)) for s in ("zigzag", "ulysses", "packed")}
    whole = step(trainer, "zigzag")
    for found in steps.values():
        assert several.bound < found.seconds < whole.seconds
    alone = several.step(Plan(data=1, context=1, tensor=8, zero=1))
    assert several.bound < alone.seconds < trainer.step(Plan(tensor=8, zero=1)).seconds
    with pytest.raises(LoomError, match="64 tokens in all"):
        Trainer(trainer.cluster, trainer.graph, [32, 32])
