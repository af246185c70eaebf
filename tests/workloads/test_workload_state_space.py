"""State-space models: parameters, work, bytes and states against closed forms, cycles of their functions, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.arch.document import Document
from siliconloom.arch.tile import VectorUnit
from siliconloom.arch.vector import VectorFunction
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.sharing import part_of
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.mapper.system.shard import sequences_of, tensor_shard
from siliconloom.sim.timing.units import vector_cycles
from siliconloom.workloads import Graph, load_workload
from siliconloom.workloads.load import read_workload
from siliconloom.workloads.recurrence import Recurrence

SIZES = st.fixed_dictionaries(
    {
        "hidden_size": st.integers(1, 40).map(lambda n: 8 * n),
        "num_hidden_layers": st.integers(1, 4),
        "vocab_size": st.integers(1, 200),
        "state_size": st.integers(1, 40),
        "conv_kernel": st.integers(2, 6),
        "use_bias": st.booleans(),
        "use_conv_bias": st.booleans(),
        "tie_word_embeddings": st.booleans(),
    }
)
STEPS = st.fixed_dictionaries({"batch": st.integers(1, 4), "sequence": st.integers(1, 70)})


def built(model: dict[str, Any], phase: str, batch: int, sequence: int, precision: str = "bf16") -> Graph:
    """The graph of a configuration."""
    lengths = {"sequence": sequence} if phase == "prefill" else {}
    entry = {"kind": "transformer", "precision": precision, "phase": phase, "batch": batch, **lengths, "model": model}
    return read_workload(Document.parse(json.dumps(entry)), "model")


def outside(model: dict[str, Any]) -> int:
    """Parameters of tables, head and last norm."""
    table = model["vocab_size"] * model["hidden_size"]
    return table * (1 if model["tie_word_embeddings"] else 2) + model["hidden_size"]


@given(model=SIZES, run=STEPS, rank=st.integers(1, 30), expand=st.integers(1, 3))
def test_mamba_has_the_parameters_and_work_of_its_matrices(
    model: dict[str, Any], run: dict[str, int], rank: int, expand: int
) -> None:
    model |= {"model_type": "mamba", "time_step_rank": rank, "expand": expand}
    d, n, taps = model["hidden_size"], model["state_size"], model["conv_kernel"]
    inner = expand * d
    matrices = 2 * d * inner + inner * (rank + 2 * n) + rank * inner + inner * d
    vectors = inner * (taps + model["use_conv_bias"]) + inner + inner * n + inner + d
    vectors += model["use_bias"] * (2 * inner + d)
    layers = model["num_hidden_layers"]
    for phase, tokens in (("prefill", run["batch"] * run["sequence"]), ("decode", run["batch"])):
        graph = built(model, phase, **run)
        assert graph.parameters == layers * (matrices + vectors) + outside(model)
        assert graph.macs == layers * tokens * matrices + run["batch"] * d * model["vocab_size"]
        assert graph.state_bytes == 2 * layers * run["batch"] * inner * (n + taps - 1)
        assert graph.kv_bytes == graph.kv_bytes_per_token == 0
        scan = next(o for o in graph.operators() if o.name.endswith("scan"))
        state = run["batch"] * n * inner
        assert scan.input_bytes == 2 * (tokens * 2 * (inner + n) + (phase == "decode") * state)
        assert scan.output_bytes == 2 * (tokens * inner + state)


@given(
    model=SIZES,
    run=STEPS,
    heads=st.integers(1, 6),
    width=st.integers(1, 8),
    groups=st.integers(1, 3),
    chunk=st.sampled_from([8, 16, 64]),
)
def test_mamba2_has_the_parameters_and_work_of_its_chunks(
    model: dict[str, Any], run: dict[str, int], heads: int, width: int, groups: int, chunk: int
) -> None:
    heads *= groups
    d, inner = heads * width, 2 * heads * width
    sizes = {"hidden_size": d, "num_heads": 2 * heads, "head_dim": width, "n_groups": groups, "chunk_size": chunk}
    model |= {"model_type": "mamba2", **sizes}
    heads, n, taps = 2 * heads, model["state_size"], model["conv_kernel"]
    convolved = inner + 2 * groups * n
    matrices = d * (inner + convolved + heads) + inner * d
    vectors = convolved * (taps + model["use_conv_bias"]) + 3 * heads + inner + d
    vectors += model["use_bias"] * (inner + convolved + heads + d)
    layers, batch = model["num_hidden_layers"], run["batch"]
    head = batch * d * model["vocab_size"]
    decode = built(model, "decode", **run)
    assert decode.parameters == layers * (matrices + vectors) + outside(model)
    assert built(model, "prefill", **run).parameters == decode.parameters
    assert decode.macs == layers * batch * matrices + head
    graph = built(model, "prefill", **run)
    size = min(chunk, run["sequence"])
    chunks = batch * -(-run["sequence"] // size)
    mixed = groups * size**2 * n + heads * size**2 * width + 2 * size * n * inner
    assert graph.macs == layers * (batch * run["sequence"] * matrices + chunks * mixed) + head
    for made in (graph, decode):
        assert made.state_bytes == 2 * layers * batch * (inner * n + convolved * (taps - 1))


COSTS = {
    "causal_conv1d": (1, 0, False),
    "selective_scan": (3, 2, True),
    "state_update": (2, 3, True),
    "chunk_cumsum": (0, 1, True),
    "chunk_decay": (0, 3, False),
    "chunk_inputs": (0, 3, False),
    "state_passing": (0, 2, True),
    "chunk_outputs": (0, 3, False),
    "softplus": (0, 2, False),
}
"""Cycles for each state or tap, cycles beside them, and whether rows wait for the row before."""


@given(
    name=st.sampled_from(sorted(COSTS)),
    rows=st.integers(1, 300),
    cols=st.integers(1, 3000),
    states=st.integers(1, 64),
    lanes=st.sampled_from([1, 16, 128]),
    latency=st.integers(1, 80),
)
def test_functions_take_the_cycles_of_their_operations(
    name: str, rows: int, cols: int, states: int, lanes: int, latency: int
) -> None:
    each, beside, waits = COSTS[name]
    slot = each * states + beside if each else beside
    row = -(-cols // lanes) * slot
    expected = rows * (max(row, latency) if waits else row) + latency + 1
    unit = VectorUnit(lanes=lanes, latency=latency)
    assert vector_cycles(unit, VectorFunction(name), rows, cols, states) == expected
    assert not VectorFunction(name).spec.circuit


@given(sequences=st.integers(1, 8), run=st.integers(1, 20), cols=st.integers(1, 50), second=st.integers(1, 9))
def test_tiles_share_whole_sequences(sequences: int, run: int, cols: int, second: int) -> None:
    whole = next(o for o in built(MODEL, "prefill", sequences, run).operators() if o.name.endswith("scan"))
    assert isinstance(whole, Recurrence)
    part = part_of(whole, (1, second, 2))
    if second > sequences:
        assert part is None
    else:
        assert isinstance(part, Recurrence)
        assert (part.run, part.sequences, part.cols) == (run, -(-sequences // second), whole.cols // 2)
        assert part_of(whole, (1, 1, whole.cols + cols)) is None


MODEL = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 96, "time_step_rank": 4}
SECOND = {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 96, "chunk_size": 16}
SECOND |= {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 32}


@pytest.mark.parametrize("model", [MODEL, SECOND], ids=["mamba", "mamba2"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("chip", ["npu-edge-int8", "npu-datacenter"])
def test_chips_run_them_within_their_bounds(model: dict[str, Any], phase: str, chip: str) -> None:
    graph = built(model, phase, 3, 40, "int8" if chip == "npu-edge-int8" else "bf16")
    result = simulate(chip, graph).result()
    rows = {row["name"]: row for row in result["operators"]}
    for operator in graph.operators():
        row = rows.get(operator.name)
        if isinstance(operator, Recurrence) and row is not None:
            assert row["cycles"] >= row["bound_cycles"]
            assert row["hardware_why"].startswith("no circuit for")
            moved = operator.input_bytes + operator.output_bytes + operator.weight_bytes
            # every tile of a sequence reads and writes its state, and columns of all tiles their rows' operands
            assert row["read_bytes"] + row["write_bytes"] >= moved * operator.repeat
    assert result["cycles"] >= result["bound"]["lower_bound_cycles"]
    level = next(iter(result["memory"]["levels"].values()))
    assert level["used_bytes"] >= graph.weight_bytes + graph.state_bytes
    assert result["asked"]["sequence"] == (40 if phase == "prefill" else 1)


@pytest.mark.parametrize("model", ["mamba-2.8b", "mamba2-2.7b"])
@pytest.mark.parametrize("chip", ["npu-edge", "npu-edge-w8a8", "gemmini-16"])
def test_narrow_tiles_find_room_for_the_rows_of_a_state(model: str, chip: str) -> None:
    graph = load_workload(model, [("layers", "1"), ("phase", "decode"), ("batch", "2")])
    result = simulate(chip, graph).result()
    assert result["cycles"] >= result["bound"]["lower_bound_cycles"]


def test_a_sequence_longer_than_a_tile_goes_on_from_its_state() -> None:
    small = load_chip("npu-edge-int8", [("tile.scratchpad.capacity", "64KiB"), ("tile.scratchpad.banks", "16")])
    graph = built(MODEL | {"num_hidden_layers": 1}, "prefill", 2, 1000, "int8")
    rows = {row["name"]: row for row in simulate(small, graph).result()["operators"]}
    scan = next(o for o in graph.operators() if o.name == "layer.scan")
    assert isinstance(scan, Recurrence)
    states, rest = divmod(rows["layer.scan"]["write_bytes"] - scan.rows * scan.cols, scan.state_rows * scan.cols)
    assert rest == 0
    assert states > scan.sequences


def test_the_library_has_the_published_models() -> None:
    graph = load_workload("mamba-2.8b")
    assert graph.parameters == pytest.approx(2.768e9, rel=5e-3)
    assert load_workload("mamba2-2.7b").parameters == pytest.approx(2.702e9, rel=5e-3)
    decode = load_workload("mamba-2.8b", [("phase", "decode"), ("batch", "8")])
    assert decode.state_bytes == 8 * load_workload("mamba-2.8b").state_bytes == 8 * 64 * 5120 * (16 + 3) * 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([("phase", "decode"), ("context", "64")], "context: mamba keeps a state of one size"),
        ([("cache_length", "64")], "cache_length: mamba keeps a state of one size"),
        ([("cache_precision", "int8")], "mamba keeps no keys and values"),
        ([("phase", "training")], "training of mamba: no gradients of a scan"),
        ([("model.num_attention_heads", "4")], "model type mamba reads no such key"),
        ([("model.hidden_act", "relu")], "must be silu"),
        ([("model.intermediate_size", "64")], "must be 5120, expand times hidden_size"),
        ([("model.expand", "1"), ("model.intermediate_size", "5120")], "must be 2560"),
    ],
)
def test_what_a_state_has_no_answer_for_is_refused(overrides: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(LoomError, match=message):
        load_workload("mamba-2.8b", overrides)


@pytest.mark.parametrize("changes", [{"num_heads": 7}, {"n_groups": 3}])
def test_heads_that_do_not_fit_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(LoomError, match="heads"):
        built(SECOND | changes, "prefill", 1, 16)


def test_machines_without_a_model_of_it_name_it() -> None:
    graph = built(MODEL, "prefill", 2, 16)
    with pytest.raises(NotSupported, match=r"layer\.conv1d: causal_conv1d on a GPU"):
        evaluate(read_machine("h100", []), graph)
    for share in (lambda: tensor_shard(graph, 2), lambda: sequences_of(graph, 1)):
        with pytest.raises(NotSupported, match=r"no scheme to share the states of layer\.conv1d"):
            share()


@pytest.mark.parametrize(("operator", "rows", "fits"), [("scan", 7, True), ("scan", 40, True), ("scan", 50, False)])
def test_a_described_tile_has_parts_of_a_sequence_or_whole_ones(operator: str, rows: int, fits: bool) -> None:
    graph, chip = built(MODEL, "prefill", 2, 40, "int8"), load_chip("npu-edge-int8")
    described = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    task = next(each for each in described["tasks"] if each["operator"] == f"layer.{operator}")
    task["vector"]["rows"] = rows
    text = Document.parse(yaml.safe_dump(described))
    if fits:
        assert simulate(chip, graph, mapping=text).run.cycles > 0
    else:
        with pytest.raises(LoomError, match=r"a tile of layer\.scan has whole sequences of 40 rows, or parts of one"):
            simulate(chip, graph, mapping=text)
