"""Mapped programs are legal by construction: what the search proposes, the tile runs."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st

from siliconloom.arch import Chip, LoomError, load_chip
from siliconloom.arch.array import ARRAY_FORMATS
from siliconloom.arch.assembler import violations
from siliconloom.arch.document import Document
from siliconloom.arch.isa import Opcode
from siliconloom.arch.layout import window_of
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.layout import BANKED, banks_of, bases, slots_of
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.transfers import moved_rows, pieces
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.verification.races import races
from siliconloom.workloads import load_workload
from siliconloom.workloads.load import read_workload
from tests.execution.models import DATAFLOWS
from tests.mapper.chip.semaphores import left

MODELS = (
    "gpt2",
    "llama3-8b",
    "bert-base",
    "mixtral-8x7b",
    "pythia-1b",
    "vit-base",
    "t5-base",
    "whisper-small",
    "gpt2-block-gemms",
)
UNBUILT = ("rescale", "softmax_merged")
"""Functions without a circuit; what else is wrong with a program is a bug of the mapper."""
LOOKED_AT = 2_000
"""Executions of a program of which no two may race: the first ones, as examples are many."""


@st.composite
def tiles(draw):
    """Chips whose tile has RTL, of any shape that RTL is built for."""
    rows, cols = draw(st.integers(2, 33)), draw(st.integers(2, 33))
    bus, lanes = 2 ** draw(st.integers(1, 8)), 2 ** draw(st.integers(1, 6))
    line, dataflow = max(bus, lanes), draw(st.sampled_from(DATAFLOWS))
    at_once = [1] if dataflow == "output_stationary" else [n for n in range(1, rows + 1) if rows % n == 0]
    return Chip.model_validate(
        {
            "kind": "chip",
            "name": "any",
            "clock": "1 GHz",
            "tile": {
                "kind": "npu",
                "array": {
                    "rows": rows,
                    "cols": cols,
                    "dataflow": dataflow,
                    "load_rows": draw(st.sampled_from(at_once)),
                },
                "scratchpad": {
                    "capacity": f"{2 ** draw(st.integers(18, 21))} B",
                    "banks": 2 ** draw(st.integers(4, 6)),
                },
                "accumulator": {"capacity": f"{4 * cols * 2 ** draw(st.integers(8, 12))} B"},
                "vector": {"lanes": lanes, "latency": 16},
                "dma": {"bytes_per_cycle": bus, "port_bytes": min(line, 128)},
                "sequencer": {"program_words": 2**20},
            },
            "memory": {
                "dram": {
                    "kind": "lpddr5",
                    "capacity": "4 TiB",
                    "bandwidth": f"{bus} GB/s",
                    "latency": "50 ns",
                    "access_bytes": bus,
                }
            },
        }
    )


def wrong(chip, program):
    """Rules that a program breaks, functions without a circuit left out; semaphores not as they began; races."""
    found = [str(violation.error) for violation in violations(program, chip)]
    found += [f"{name} ends {number:+d}" for name, number in left(program).items()]
    found += [str(race) for race in races(program, chip, LOOKED_AT)]
    return [text for text in found if not any(f"no circuit for the vector function {f};" in text for f in UNBUILT)]


def mapped_if_it_fits(chip, graph):
    """The mapping; a chip whose buffers cannot hold the smallest tiles makes no example."""
    try:
        return map_workload(chip, graph)
    except LoomError as error:
        if "cannot hold two tiles" not in str(error):
            raise
        reject()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(chip=tiles(), model=st.sampled_from(MODELS), decode=st.booleans(), length=st.integers(1, 300))
def test_every_program_of_every_tile_is_taken_by_the_assembler(chip, model, decode, length):
    geometry_of(chip)
    if model.endswith("gemms"):
        sets = []
    elif model == "vit-base":  # an image has its own length
        sets = [("layers", "1")]
    elif decode and model != "bert-base":
        sets = [("phase", "decode"), ("context", str(length)), ("layers", "1")]
    elif model == "whisper-small":  # and 30 seconds of sound
        sets = [("model.max_source_positions", str(min(length, 128))), ("layers", "1")]
    else:
        sets = [("sequence", str(min(length, 128))), ("layers", "1")]
    plan = mapped_if_it_fits(chip, load_workload(model, sets))
    broken = wrong(chip, plan.program)
    if banks_of(chip.tile, plan.layout) > chip.tile.scratchpad.banks:
        assert all("bank conflict" in text for text in broken), "banks are too few, and nothing else is wrong"
        return
    assert broken == []
    places = bases(chip.tile, plan.layout)
    bank = chip.tile.scratchpad.capacity // chip.tile.scratchpad.banks
    ends = [
        (places[kind[0]], places[kind[-1]] + slots_of(chip.tile, kind[-1], size) * size)
        for kind in BANKED
        if (size := getattr(plan.layout, kind[-1]))
    ]
    owners = [b for start, end in ends for b in range(start // bank, -(-end // bank))]
    assert len(owners) == len(set(owners)), "a bank has rings of two kinds"


@pytest.mark.slow(seconds=2)
@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 130),
    n=st.integers(1, 130),
    k=st.integers(1, 130),
    batch=st.integers(1, 3),
    chip=tiles(),
    dtype=st.sampled_from(ARRAY_FORMATS),
)
def test_products_of_any_size_are_legal(tmp_path_factory, m, n, k, batch, chip, dtype):
    """In the format that the tile computes in."""
    array = chip.tile.array.model_copy(update={"operands": (dtype,)})
    chip = chip.model_copy(update={"tile": chip.tile.model_copy(update={"array": array})})
    file = tmp_path_factory.mktemp("any") / "any.yaml"
    gemm = f"{{name: a, m: {m}, n: {n}, k: {k}, batch: {batch}}}"
    file.write_text(f"kind: gemms\nprecision: {dtype.value}\ngemms:\n  - {gemm}\n")
    plan = map_workload(chip, load_workload(str(file)))
    assert wrong(chip, plan.program) == []


@pytest.mark.slow(seconds=2)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(m=st.integers(2, 60), n=st.integers(4, 200), k=st.integers(20, 400), chip=tiles(), room=st.integers(12, 16))
def test_no_word_is_read_while_it_is_written_where_buffers_are_small(tmp_path_factory, m, n, k, chip, room):
    """There rows stay in parts, which are loaded beside others that the array reads."""
    scratchpad = chip.tile.scratchpad.model_copy(update={"capacity": 2**room})
    chip = chip.model_copy(update={"tile": chip.tile.model_copy(update={"scratchpad": scratchpad})})
    file = tmp_path_factory.mktemp("any") / "any.yaml"
    file.write_text(f"kind: gemms\nprecision: int8\ngemms:\n  - {{name: a, m: {m}, n: {n}, k: {k}}}\n")
    plan = mapped_if_it_fits(chip, load_workload(str(file)))
    assert list(races(plan.program, chip, LOOKED_AT)) == []


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    "sets",
    [
        [("sequence", "32")],
        [("phase", "decode"), ("context", "200")],
        [("phase", "decode"), ("context", "7000"), ("model.n_positions", "8192")],  # rows that fit no accumulator
    ],
)
def test_the_edge_npu_runs_all_of_gpt2(sets):
    done = simulate("npu-edge-int8", load_workload("gpt2", [("layers", "2"), *sets]))
    assert done.result()["hardware"]["word"] == "proven"
    assert simulate("npu-edge-int8", "gpt2-block-gemms").result()["hardware"]["word"] == "proven"


def test_too_few_banks_are_shared_and_the_result_says_so():
    done = simulate("npu-edge-int8", "gpt2-block-gemms", [("tile.scratchpad.banks", "2")])
    assert set(done.result()["hardware"]["why"]) == {"bank conflict"}


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=500, deadline=None)
@given(
    bus=st.sampled_from([4, 16, 64, 256, 48]),
    rows=st.integers(1, 20),
    width=st.integers(1, 700),
    pads=st.sampled_from([(0, 0), (0, 0), (0, 16), (1, 0), (4, 4), (8, 24), (24, 8), (16, 16), (64, 0), (64, 16)]),
    places=st.one_of(st.just(0), st.integers(0, 4000), st.integers(0, 200).map(lambda n: 16 * n)),
)
def test_transfers_cover_every_byte_once_and_begin_where_they_must(bus, rows, width, pads, places):
    pitch, local = width + pads[0], width + pads[1]
    made = pieces(bus, rows, width, pitch, local, places)
    touched = []
    for piece in made:
        m, n = piece.fields["m"], piece.fields["n"]
        for row in range(m):
            memory = piece.memory + row * piece.fields["pitch"]
            inside = piece.local + row * piece.fields["local_pitch"]
            touched += [(memory + b, inside + b) for b in range(n)]
        begins = [
            places,
            piece.memory,
            piece.local,
            *((piece.fields["pitch"], piece.fields["local_pitch"]) if m > 1 else ()),
        ]
        if bus & bus - 1 == 0:
            assert not [b for b in begins if b % window_of(bus, n)]
    assert sorted(touched) == sorted((r * pitch + b, r * local + b) for r in range(rows) for b in range(width))
    for fills in (False, True):
        made = pieces(bus, rows, width, pitch, local, places, fills=fills)
        arrays = (np.array([value]) for value in (rows, width, pitch, local, places))
        told = moved_rows(bus, *arrays, fills=fills)
        rows_of: Counter[int] = Counter()
        for piece in made:
            rows_of[piece.fields["n"]] += piece.fields["m"]
        assert len(made) == told.transfers[0]
        assert rows_of == +Counter({int(told.rest[0]): int(told.rest_rows[0]), int(told.width[0]): int(told.rows[0])})


@pytest.mark.slow(seconds=1)
@settings(max_examples=500, deadline=None)
@given(
    bus=st.sampled_from([4, 16, 64, 256]),
    rows=st.integers(1, 20),
    width=st.one_of(st.integers(1, 3000), st.integers(1, 24).map(lambda n: 64 * n)),
    pads=st.sampled_from([(0, 0), (0, 0), (0, 16), (1, 0), (4, 4), (8, 24), (24, 8), (16, 16), (64, 0), (64, 16)]),
    places=st.one_of(st.just(0), st.integers(0, 200).map(lambda n: 16 * n)),
)
@example(bus=256, rows=18, width=128, pads=(0, 0), places=2816)
def test_a_wider_bus_never_takes_more_beats(bus, rows, width, pads, places):
    def beats(bus):
        made = pieces(bus, rows, width, width + pads[0], width + pads[1], places)
        return sum(piece.fields["m"] * -(-piece.fields["n"] // bus) for piece in made)

    assert beats(2 * bus) <= beats(bus)


@pytest.mark.slow(seconds=1)
@settings(max_examples=300, deadline=None)
@given(
    bus=st.sampled_from([4, 16, 64, 256]),
    rows=st.integers(2, 20),
    width=st.integers(1, 300),
    unit=st.sampled_from([4, 8, 16, 32]),
    places=st.integers(0, 200).map(lambda n: 16 * n),
)
def test_what_fills_rows_up_is_moved_where_that_takes_fewer_rows(bus, rows, width, unit, places):
    """Bytes lie on both sides alike, all of the rows' are there, and none beyond what fills up the last one."""
    pitch = -(-width // unit) * unit
    plain, filled = (pieces(bus, rows, width, pitch, pitch, places, fills=fills) for fills in (False, True))
    taken = [sum(piece.fields["m"] for piece in made) for made in (plain, filled)]
    assert taken[1] <= taken[0]
    moved = set()
    for piece in filled:
        m, n, step = (piece.fields[name] for name in ("m", "n", "pitch"))
        assert step == piece.fields["local_pitch"]
        assert not [at for at in (places, piece.memory, step if m > 1 else 0) if at % window_of(bus, n)]
        moved |= {piece.memory + row * step + byte for row in range(m) for byte in range(n)}
    assert {row * pitch + byte for row in range(rows) for byte in range(width)} <= moved <= set(range(rows * pitch))
    assert len(filled) <= len(plain)


def test_what_is_gated_takes_two_halves_of_the_sums():
    """A gated activation requantises both halves of its columns, each with parameters of its own."""
    plan = map_workload(load_chip("npu-edge-int8"), load_workload("llama3-8b", [("layers", "1"), ("sequence", "16")]))
    names = plan.program.operators
    functions = [
        i.function.value
        for i in plan.program.instructions
        if i.opcode == Opcode.VECTOR and names[i.operator] == "layer.gate_up"
    ]
    assert functions[:3] == ["requantize", "requantize", "gated_silu"]


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@pytest.mark.parametrize(("cols", "half"), [(16, 24), (16, 5), (8, 27), (12, 20), (4, 13)])
def test_gated_halves_of_any_width_are_legal(dataflow, cols, half):
    """Halves end with narrow panels, and the second one's sums begin with a whole line."""
    load_rows = 1 if dataflow == "output_stationary" else 4
    array = {"cols": cols, "rows": 16, "dataflow": dataflow, "load_rows": load_rows}
    chip = load_chip("npu-edge-int8", [(f"tile.array.{key}", str(value)) for key, value in array.items()])
    sizes = {"intermediate_size": half, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3}
    sets = [("layers", "1"), ("sequence", "7"), *((f"model.{key}", str(value)) for key, value in sizes.items())]
    plan = map_workload(chip, load_workload("llama3-8b", sets))
    assert wrong(chip, plan.program) == []


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("dataflow", DATAFLOWS)
@pytest.mark.parametrize("phase", [("sequence", "16"), ("context", "40")])
def test_every_operator_is_proven_whatever_stays_in_the_array(dataflow, phase):
    sets = [("tile.array.dataflow", dataflow), ("tile.array.load_rows", "1")]
    graph = load_workload("gpt2", [("layers", "1"), ("phase", "decode" if phase[0] == "context" else "prefill"), phase])
    hardware = simulate(load_chip("npu-edge-int8", sets), graph).result()["hardware"]
    assert (hardware["word"], hardware["why"]) == ("proven", {})


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_patches_come_from_outside_whatever_stays_in_the_array(dataflow):
    """All of an image's operators are proven but the sum of its class token and its patches, which two have made."""
    chip = load_chip("npu-edge-int8", [("tile.array.dataflow", dataflow), ("tile.array.load_rows", "1")])
    result = simulate(chip, load_workload("vit-base", [("layers", "1")])).result()
    unproven = {o["name"]: o["hardware"] for o in result["operators"] if o["hardware"] != "proven"}
    assert list(unproven) == ["embedding.add"], unproven


MODELS = {
    "gpt2": {"n_embd": 24, "n_layer": 1, "n_head": 3, "n_inner": 72, "n_positions": 512},
    "llama": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 43},
    "falcon": {"hidden_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_hidden_size": 117},
    "gpt_neox": {"hidden_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8},
}


@pytest.mark.slow(seconds=4.5)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(2, 32),
    cols=st.integers(2, 32),
    lanes=st.sampled_from([2, 4, 8, 16, 32, 64]),
    bus=st.sampled_from([4, 8, 32, 128]),
    dataflow=st.sampled_from(DATAFLOWS),
    dtype=st.sampled_from(["int4", "int8", "bf16", "fp16", "fp8_e4m3"]),
    model=st.sampled_from(sorted(MODELS)),
    decode=st.booleans(),
    length=st.integers(1, 100),
)
def test_operands_of_models_in_every_format_begin_at_whole_lines(
    rows, cols, lanes, bus, dataflow, dtype, model, decode, length
):
    """Lines of the vector unit are as many bytes as its elements have, and a function without parameters reads none."""
    sets = {
        "tile.array.rows": rows,
        "tile.array.cols": cols,
        "tile.array.load_rows": 1,
        "tile.array.dataflow": dataflow,
        "tile.array.operands": f"[{dtype}]",
        "tile.vector.lanes": lanes,
        "tile.dma.bytes_per_cycle": bus,
        "tile.accumulator.capacity": "64 KiB",
    }
    chip = load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()])
    config = {"model_type": model, "vocab_size": 94, "max_position_embeddings": 512, **MODELS[model]}
    asked = [("phase", "decode"), ("context", str(length + 1))] if decode else [("sequence", str(length))]
    document = Document({"kind": "transformer", "model": config}, {}, "model.yaml")
    plan = map_workload(chip, read_workload(document, "model", [*asked, ("precision", dtype)]), search=False)
    misaligned = [each for each in violations(plan.program, chip) if "misaligned operand" in str(each.error)]
    assert not misaligned, str(misaligned[0].error)
