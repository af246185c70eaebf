"""The program that ``loom sim`` times, on the RTL: mapped workloads on small tiles, every cycle and every byte."""

import json
import random

import numpy as np
import pytest
import yaml
from msgspec.structs import replace

from siliconloom.arch import NotSupported, load_chip
from siliconloom.arch.document import Document
from siliconloom.arch.isa import Opcode, Program
from siliconloom.arch.phases import fences
from siliconloom.arch.vector import VectorFunction
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.layout import slots_of
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.mapper.chip.program import lower
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.rtl.bench.runner import care, simulator_path
from siliconloom.sim.chip.engine import Counter, duration, run
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.filling import filled
from siliconloom.verification.machine import verify
from siliconloom.verification.npu import check_programs
from siliconloom.verification.programs import random_program
from siliconloom.verification.workload import refuse
from siliconloom.workloads import Attention, Gemm, load_workload
from tests.in_turn import in_turn
from tests.mapper.chip.anew import divided_by_chance, with_tiles
from tests.mapper.chip.early import loaded_early
from tests.mapper.chip.tiled import in_blocks, tiled

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 64, "vocab_size": 40}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "num_hidden_layers": 1,
    "num_local_experts": 2,
    "num_experts_per_tok": 2,
    "intermediate_size": 24,
}
"""Two experts, to both of which every token goes."""
PRODUCTS = """kind: gemms
precision: int8
gemms:
  - {name: a, m: 9, n: 21, k: 50}
  - {name: b, m: 1, n: 4, k: 3}
  - {name: c, m: 17, n: 8, k: 8, batch: 2}
"""


SETS = {
    "tile.array.rows": 4,
    "tile.array.cols": 4,
    "tile.array.load_rows": 2,
    "tile.scratchpad.capacity": "32 KiB",
    "tile.accumulator.capacity": "8 KiB",
    "tile.vector.lanes": 4,
    "tile.dma.bytes_per_cycle": 16,
    "tile.dma.port_bytes": 16,
    "memory.dram.access_bytes": 16,
    "memory.dram.bandwidth": "25.6 GB/s",
    "memory.dram.latency": "30 ns",
}
"""A small tile with a bus as wide as four lines: most of its time goes into compiling its lanes."""
ODD = {"tile.array.rows": 6, "tile.array.cols": 10, "tile.array.load_rows": 2, "tile.sequencer.program_words": 2048}
"""One whose sides, and whose vector unit's lanes, have little in common."""


def tile_of(sets):
    return load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()])


@pytest.fixture(scope="module")
def chip():
    return tile_of(SETS)


def graph(folder, model, *sets):
    """A workload of a configuration, or of a list of products."""
    file = folder / ("model.yaml" if isinstance(model, str) else "config.json")
    file.write_text(model if isinstance(model, str) else json.dumps(model))
    return load_workload(str(file), list(sets))


def mapped(chip, made):
    return map_workload(chip, made, lambda program: duration(program, chip))


@pytest.mark.slow(seconds=70)
def test_mapped_workloads_agree_in_every_cycle_and_byte(tmp_path):
    """Products of odd sizes; a GPT-2 and a Llama of small widths, of a prompt and of a token after it.

    Weights are loaded ahead as far as chance has it. One finds its next tokens itself. One has rows that are no
    multiples of the bus, and more of them than indices are loaded at a time. All are few enough cycles together for a
    bench that is compiled without optimizing. The tile has half as many lanes as columns: compiling four lanes takes
    longer than all else.
    """
    chip = tile_of(SETS | {"tile.vector.lanes": 2})
    works = [
        (PRODUCTS, ()),
        (GPT2, (("sequence", "11"),)),
        (GPT2 | {"n_embd": 12, "n_head": 1, "n_positions": 96}, (("sequence", "68"),)),
        (LLAMA, (("phase", "decode"), ("context", "19"), ("batch", "2"))),
        (LLAMA, (("sequence", "9"),)),
        (GPT2, (("sequence", "6"), ("batch", "3"), ("sample", "greedy"))),
    ]
    programs = [
        (str(number), filled(loaded_early(mapped(chip, graph(tmp_path, model, *sets)), random.Random(number)), number))
        for number, (model, sets) in enumerate(works)
    ]
    assert care(sum(duration(made.program, chip) for _, made in programs)) == 0
    for parity in check_programs(chip, programs):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


QUICK = "icarus" if simulator_path("icarus") else "verilator"
"""For benches of few cycles: Verilator compiles a tile for two or three times as long as Icarus takes for all."""


TINY = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "intermediate_size": 12}
SMALL_WORKS = [
    (LLAMA | TINY | {"hidden_size": 8, "vocab_size": 12}, (("phase", "decode"), ("context", "5"))),
    (PRODUCTS, ()),
    (GPT2 | {"n_embd": 8, "n_head": 1, "vocab_size": 12}, (("sequence", "2"), ("sample", "greedy"))),
]


@pytest.mark.parametrize(("model", "sets"), in_turn(SMALL_WORKS, 3, seconds=20), ids=["llama", "products", "gpt2"])
def test_small_mapped_workloads_agree_in_every_cycle_and_byte(tmp_path, model, sets):
    """As above, a few thousand cycles: a token of a Llama after others, products, a GPT-2 that finds its next token."""
    chip = tile_of(SETS | {"tile.vector.lanes": 2})
    made = filled(mapped(chip, graph(tmp_path, model, *sets)), 1)
    for parity in check_programs(chip, [("one", made)], simulator=QUICK):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 100


CUT = {
    "stored": ({"rows": 4, "cols": 3, "dataflow": "output_stationary"}, 8, 2, (14, 26, 25)),
    "rows": ({"rows": 2, "cols": 3, "dataflow": "output_stationary"}, 16, 8, (11, 26, 23)),
    "rest": ({"rows": 2, "cols": 8, "dataflow": "weight_stationary"}, 64, 4, (16, 42, 25)),
}
"""Arrays, buses, lanes and products whose tiles begin within a window of the bus: cut row by row, or with a rest."""


def cut_product(kind, folder):
    """A tile of `CUT`, and its product mapped to it."""
    array, bus, lanes, (m, n, k) = CUT[kind]
    sets = {f"tile.array.{key}": value for key, value in array.items()} | {"tile.array.load_rows": 1}
    sets |= {"tile.scratchpad.capacity": "16 KiB", "tile.accumulator.capacity": "2 KiB"}
    tile = tile_of(sets | {"tile.vector.lanes": lanes, "tile.dma.bytes_per_cycle": bus})
    work = map_workload(tile, graph(folder, f"kind: gemms\ngemms: [{{name: a, m: {m}, n: {n}, k: {k}}}]\n"))
    moved = [i for i in work.program.instructions if i.opcode in (Opcode.LOAD, Opcode.STORE)]
    assert any(i.memory.base % bus or i.a.base % bus for i in moved)
    return tile, work


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("kind", ["rows", "rest"])
def test_transfers_that_are_cut_agree_in_every_cycle_and_byte(kind, tmp_path):
    tile, work = cut_product(kind, tmp_path)
    record = verify(tile, workload=work, simulator=QUICK)
    assert record.passed
    assert record.totals.bytes_compared > 500


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("cut", [True, False])
def test_rows_in_blocks_of_fewer_than_the_array_has_agree_in_every_cycle_and_byte(cut, tmp_path):
    """Blocks of one and two rows of an array of four, which keeps its sums.

    On the same bench are transfers that are cut, and a random program that is reset at several moments of its first
    run, of which nothing is left behind in its second.
    """
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    programs, options = [], []
    if cut:
        tile, other = cut_product("stored", tmp_path)
        random, resets = random_program(tile, 4), (20, 45, 110, 230)
        assert max(resets) < duration(random.program, tile)
        programs = [("cut", filled(other, 1)), *((f"reset at {cycle}", random) for cycle in resets)]
        options = [{}, *({"reset_at": cycle} for cycle in resets)]
        work = graph(tmp_path, PRODUCTS)
    else:
        sides = {"tile.array.rows": 4, "tile.array.cols": 2, "tile.array.dataflow": "output_stationary"}
        tile = tile_of(SETS | sides | {"tile.array.load_rows": 1, "tile.vector.lanes": 2})
        work = graph(tmp_path, GPT2 | {"n_embd": 16, "n_head": 1}, ("sequence", "7"))
    products = [each.name for each in work.operators() if isinstance(each, Gemm)]
    blocks = {name: (1, 0, 2)[(place - cut) % 3] for place, name in enumerate(products)}
    made = in_blocks(tile, work, blocks)
    assert all(task.tiling.m <= blocks[task.task.operator.name] for task in made.tasks if task.task.block)
    programs.append(("blocks", filled(made, 1)))
    for parity in check_programs(tile, programs, simulator="icarus", options=options):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 500


HELD = """kind: gemms
precision: int8
gemms:
  - {name: a, m: 21, n: 27, k: 100}
  - {name: b, m: 1, n: 4, k: 3}
  - {name: c, m: 17, n: 24, k: 41, batch: 2}
  - {name: d, m: 30, n: 9, k: 75}
"""


WHOLE_FOLDS = {"a": (8, 8, 16, 80), "c": (12, 8, 8, 16), "d": (10, 9, 16, 16)}
"""Rows, columns and depth of tiles, and how much of the depth stays."""


def held_in_part(tile, folder, products=HELD, sizes=WHOLE_FOLDS):
    """Products of whose rows a part of the depth stays, of most of it and of little, and one between that has none."""
    work, _ = fit_precision(tile, graph(folder, products))
    described = yaml.safe_load(mapping_text(map_workload(tile, work)))
    size = tile.tile.element_bytes
    described["layout"] |= {"weights": f"{2048 * size} B", "values": f"{512 * size} B"}
    for task in described["tasks"]:
        if task["operator"] in sizes:
            m, n, k, held = sizes[task["operator"]]
            task["gemm"] = {"m": m, "n": n, "k": k, "order": "m_kept"} | ({"held": held} if held else {})
    made = lower(tile, work, mapping_of(Document.parse(yaml.safe_dump(described)), tile, work))
    refuse(tile, made)
    assert [task.tiling.held for task in made.tasks] == [sizes["a"][3], 0, sizes["c"][3], sizes["d"][3]]
    return made


@pytest.mark.slow(seconds=40)
@pytest.mark.parametrize(("rows", "part"), [(8, 4), (8, 2), (12, 6), (12, 3)])
def test_rows_that_stay_in_parts_of_a_fold_agree_in_every_cycle_and_byte(tmp_path, rows, part):
    """Tiles have an equal part of the array's rows as their depth, where some of the rows stay and where all do."""
    sides = {"tile.array.rows": rows, "tile.array.load_rows": 1, "tile.scratchpad.capacity": "64 KiB"}
    tile = tile_of(SETS | sides | {"tile.vector.lanes": 4, "tile.scratchpad.banks": 32})
    sizes = {"a": (8, 8, part, 60), "c": (12, 8, part, 0), "d": (10, 8, part, 12)}
    made = held_in_part(tile, tmp_path, sizes=sizes)
    outcome = run(made.program, tile)
    for task, counters in zip(made.tasks, outcome.counters, strict=True):
        if rows == 8 and task.task.operator.name in sizes:  # parts of 12 rows are estimated to read more than they do
            moved = counters[Counter.READ_BYTES], counters[Counter.WRITE_BYTES]
            assert moved == (task.tiling.read_bytes, task.tiling.write_bytes)
    for parity in check_programs(tile, [("parts", filled(made, 1))], simulator=QUICK):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


@pytest.mark.slow(seconds=40)
@pytest.mark.parametrize("dataflow", ["weight_stationary", "input_stationary"])
def test_rows_that_stay_in_part_agree_in_every_cycle_and_byte(tmp_path, dataflow):
    """Of most of the depth, and of little; tiles of weights in turn in two rings, and in one; one product between."""
    tile = tile_of(SETS | {"tile.vector.lanes": 2, "tile.array.dataflow": dataflow})
    made = held_in_part(tile, tmp_path)
    outcome = run(made.program, tile)
    for task, counters in zip(made.tasks, outcome.counters, strict=True):
        moved = counters[Counter.READ_BYTES], counters[Counter.WRITE_BYTES]
        assert moved == (task.tiling.read_bytes, task.tiling.write_bytes)
    for parity in check_programs(tile, [("held", filled(made, 1))], simulator=QUICK):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


OTHERS = [
    {"tile.array.dataflow": "input_stationary"},
    {"tile.array.dataflow": "output_stationary", "tile.array.load_rows": 1},
]
"""Arrays that keep their first operand, or their sums."""


def agree_on(tile, folder):
    """Products, prompts and tokens after them, of heads that share keys, whole rows and carried ones."""
    times = tile.tile.array.cols / 4
    works = [
        (PRODUCTS, ()),
        (GPT2, (("sequence", "11"),)),
        (GPT2 | {"n_embd": 50}, (("sequence", "9"),)),  # four rows of 50 values are no whole beats
        (LLAMA, (("phase", "decode"), ("context", "19"), ("batch", "2"))),
    ]
    made = [mapped(tile, graph(folder, model, *sets)) for model, sets in works]
    for each in made:
        refuse(tile, each)
    if tile.tile.array.dataflow != "output_stationary":
        made.append(tiled_rows(tile, folder))
    programs = [(str(number), filled(each, number)) for number, each in enumerate(made)]
    tall = (GPT2 | {"n_embd": 16, "n_head": 1}, (("sequence", "43"),), (6, 16, 1))  # in more rows than an array has
    parts = [
        (model, sets, (queries, int(keys * times), heads))
        for model, sets, (queries, keys, heads) in (*CARRIED[:3], tall)
    ]
    for parity in check_programs(tile, programs + carried(tile, folder, parts)):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("other", OTHERS, ids=["inputs", "sums"])
def test_mapped_workloads_agree_whatever_stays_in_the_array(other, tmp_path):
    agree_on(tile_of(SETS | other), tmp_path)


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("other", OTHERS, ids=["inputs", "sums"])
def test_mapped_workloads_agree_whatever_stays_in_an_array_of_any_sides(other, tmp_path):
    agree_on(tile_of(SETS | ODD | other), tmp_path)


WIDE = SETS | {"tile.array.cols": 16, "tile.dma.bytes_per_cycle": 4, "tile.dma.port_bytes": 4}
WIDE |= {"memory.dram.access_bytes": 4}
"""One whose array is wider than most products, on a bus that is narrower than the array."""


@pytest.mark.slow(seconds=30)
def test_panels_in_narrow_rows_agree_in_every_cycle_and_byte(tmp_path):
    """Parameters of a last panel lie in rows as wide as they need be; a gated product has two such panels."""
    tile = tile_of(WIDE)
    narrow = LLAMA | {"num_hidden_layers": 1, "intermediate_size": 20, "hidden_size": 24, "num_attention_heads": 2}
    works = [(PRODUCTS.replace("n: 21", "n: 27"), ()), (narrow, (("sequence", "6"),))]
    made = [mapped(tile, graph(tmp_path, model, *given)) for model, given in works]
    for each in made:
        loads = [i for i in each.program.instructions if i.opcode == Opcode.LOAD]
        assert any(i.m > 1 and i.pitch == i.n < i.local_pitch == tile.tile.array.cols for i in loads)
    programs = [(str(number), filled(each, number)) for number, each in enumerate(made)]
    # 13,660 cycles
    for parity in check_programs(tile, programs, simulator=QUICK):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


FILLED = SETS | {
    "tile.array.rows": 8,
    "tile.array.cols": 4,
    "tile.array.load_rows": 1,
    "tile.vector.lanes": 8,
    "tile.dma.bytes_per_cycle": 32,
    "tile.dma.port_bytes": 32,
    "tile.scratchpad.capacity": "8 KiB",
    "tile.accumulator.capacity": "1 KiB",
    "memory.dram.access_bytes": 32,
}
"""One whose bus is wider than rows of a product are filled up to."""
GAPS = SETS | {"tile.array.rows": 8, "tile.array.cols": 8, "tile.array.load_rows": 4, "tile.vector.lanes": 8}
"""One that loads more rows at once than narrow panels of a small model have in a line."""


@pytest.mark.slow(seconds=30)
def test_rows_that_are_filled_up_and_halves_with_a_gap_agree_in_every_cycle_and_byte(tmp_path):
    """A transfer of what fills rows up, too; a second half behind the first one's narrow panel and its filling."""
    products = "kind: gemms\nname: odd\nprecision: int8\ngemms: [{name: g, m: 33, n: 44, k: 106}]\n"
    odd = LLAMA | {"num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 1, "num_key_value_heads": 1}
    filled_up = mapped(tile_of(FILLED), graph(tmp_path, products))
    gated = mapped(tile_of(GAPS), graph(tmp_path, odd | {"intermediate_size": 36}, ("sequence", "5")))
    loads = [i for i in filled_up.program.instructions if i.opcode == Opcode.LOAD]
    assert any(i.m == 1 and i.n % 112 == 0 for i in loads)  # rows of 106 are 112 bytes apart
    halves = [i for i in gated.program.instructions if i.opcode == Opcode.MATMUL and i.n % 8 == 4 and i.n > 8]
    assert {i.b.base % 32 for i in halves} == {0}
    assert len({i.b.base for i in halves}) > 1
    for made, sets in ((filled_up, FILLED), (gated, GAPS)):
        for parity in check_programs(tile_of(sets), [("mapped", filled(made, 1))], simulator=QUICK):
            assert parity.passed, "\n".join([parity.name, *parity.errors])


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("sets", [SETS, SETS | ODD], ids=["small", "odd"])
def test_experts_that_all_tokens_go_to_agree_in_every_cycle_and_byte(sets, tmp_path):
    """A prompt, the token after it, and one token of each of three sequences, whose experts compute all of them.

    The last one has weights of zero where an expert is not chosen, so every token goes to every expert here, too.
    """
    tile = tile_of(sets)
    works = [
        (MIXTRAL, (("sequence", "13"),)),
        (MIXTRAL, (("phase", "decode"), ("context", "14"), ("sample", "greedy"))),
        (MIXTRAL | {"num_local_experts": 3}, (("phase", "decode"), ("batch", "3"), ("experts", "all"))),
    ]
    made = [mapped(tile, graph(tmp_path, model, *given)) for model, given in works]
    for each in made:
        refuse(tile, each)
        functions = {i.function for i in each.program.instructions if i.opcode == Opcode.VECTOR}
        assert {VectorFunction.TOP_K, VectorFunction.COMBINE} <= functions
        assert not any(task.task.serves and "expert" in task.task.owner for task in each.tasks), "nothing is gathered"
    programs = [(str(number), filled(each, number)) for number, each in enumerate(made)]
    for parity in check_programs(tile, programs):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


@pytest.mark.slow(seconds=1)
def test_tokens_that_choose_among_experts_are_refused_with_the_reason(chip, tmp_path):
    model = MIXTRAL | {"num_local_experts": 4}
    work = mapped(chip, graph(tmp_path, model, ("sequence", "6")))
    with pytest.raises(NotSupported, match="routing depends on data"):
        refuse(chip, work)


@pytest.mark.slow(seconds=30)
def test_whole_rows_of_sums_on_an_array_of_any_sides_agree_in_every_cycle_and_byte(tmp_path):
    """Keys in several tiles before one softmax: of a prompt, and of a token after many."""
    odd = tile_of(SETS | ODD)
    wide = GPT2 | {"n_embd": 64, "n_head": 1, "n_positions": 128}
    works = [(PRODUCTS, ()), (LLAMA, (("phase", "decode"), ("context", "61"), ("batch", "2")))]
    made = [mapped(odd, graph(tmp_path, model, *sets)) for model, sets in works]
    for sets in ((("sequence", "93"),), (("phase", "decode"), ("context", "111"))):
        made.append(tiled(odd, graph(tmp_path, wide, *sets), 1, 30, whole=True))
        assert any(isinstance(t.tiling, AttentionTiling) and t.tiling.whole for t in made[-1].tasks)
    programs = [(str(number), filled(each, number)) for number, each in enumerate(made)]
    for parity in check_programs(odd, programs):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


CARRIED = [
    (GPT2, (("phase", "decode"), ("context", "63")), (1, 16, 1)),
    (LLAMA | {"num_hidden_layers": 1}, (("sequence", "11"),), (2, 4, 1)),
    (LLAMA, (("phase", "decode"), ("context", "61"), ("batch", "2")), (1, 12, 2)),
    (GPT2, (("sequence", "29"),), (3, 8, 1)),
    (LLAMA, (("sequence", "21"),), (2, 4, 1)),
]
"""Prompts under a mask, and tokens after many: workloads, and queries, keys and heads of a tile of their attention."""


def carried(tile, folder, works):
    """Programs whose rows are carried from tile to tile of keys, which nothing stands in the way of."""
    made = [tiled(tile, graph(folder, model, *sets), *sizes) for model, sets, sizes in works]
    for each in made:
        refuse(tile, each)
        functions = {i.function for i in each.program.instructions if i.opcode == Opcode.VECTOR}
        assert {VectorFunction.SOFTMAX_ONLINE, VectorFunction.REQUANTIZE_ROWS} <= functions
        assert any(i.rescale for i in each.program.instructions)
    return [(str(number), filled(each, number)) for number, each in enumerate(made)]


def in_rings(tile, folder, model, sets, **sizes):
    """A workload whose products have tiles of these sizes, and whose buffers have a ring of values."""
    made, _ = fit_precision(tile, graph(folder, model, *sets))
    described = yaml.safe_load(mapping_text(mapped(tile, made)))
    layout = described["layout"]
    weights = int(layout["weights"].split()[0]) + int(layout.pop("values", "0 B").split()[0])
    half = weights // 2 // 64 * 64
    layout |= {"weights": f"{half} B", "values": f"{half} B"}
    for task in described["tasks"]:
        if "gemm" in task:
            task.pop("layout", None)
            tile_of = {key: value for key, value in task["gemm"].items() if key not in ("ahead", "chunk")}
            task["gemm"] = tile_of | {"resident": False} | sizes
    return lower(tile, made, mapping_of(Document.parse(yaml.safe_dump(described)), tile, made))


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("kind", ["prompt", "pairs", "token", "rows"])
def test_two_rings_and_pairs_of_tiles_agree_in_every_cycle_and_byte(kind, chip, tmp_path):
    """Every other tile of products, and attention's values, in a ring of their own; pairs of tiles, rows that stay."""
    several = PRODUCTS.replace("m: 1,", "m: 5,").replace("k: 3}", "k: 24}")
    if kind == "token":
        each = in_rings(chip, tmp_path, LLAMA, (("phase", "decode"), ("context", "21"), ("batch", "3")), k=8)
    elif kind == "prompt":
        each = in_rings(chip, tmp_path, several, (), m=3, n=4, k=8)
    else:
        each = tiled_pairs(chip, tmp_path, several) if kind == "pairs" else tiled_rows(chip, tmp_path)
    if kind in ("token", "prompt"):
        turns = {i.post for i in each.program.instructions if i.opcode == Opcode.LOAD}
        names = [semaphore.name for semaphore in each.program.semaphores]
        assert 1 << names.index("values_full") in turns
    (parity,) = check_programs(chip, [(kind, filled(each, 0))])
    case = parity.case()
    assert case.passed, case
    assert case.difference == 0
    assert case.bytes_compared > 1000


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("sets", [SETS, SETS | ODD], ids=["small", "odd"])
def test_buffers_that_are_divided_anew_agree_in_every_cycle_and_byte(sets, tmp_path):
    """Of a prompt, and of a token of two sequences: all products and attention, each with what there is by chance."""
    r, tile, works = random.Random(len(sets)), tile_of(sets | {"tile.scratchpad.capacity": "64 KiB"}), []
    for number, lengths in enumerate([(("sequence", "23"),), (("phase", "decode"), ("context", "19"), ("batch", "2"))]):
        made, _ = fit_precision(tile, graph(tmp_path, LLAMA, *lengths))
        plan = divided_by_chance(mapped(tile, made), r, share=1)
        assert len(fences(plan.program)) > 4
        works.append((str(number), filled(plan, number)))
    for case in (parity.case() for parity in check_programs(tile, works)):
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


PARTED = """kind: gemms
precision: int8
gemms:
  - {name: a, m: 45, n: 208, k: 50}
  - {name: b, m: 9, n: 21, k: 50}
  - {name: c, m: 36, n: 96, k: 24, batch: 2}
"""


@pytest.mark.slow(seconds=80)
@pytest.mark.parametrize("dataflow", ["weight_stationary", "output_stationary"])
def test_sums_of_one_slot_and_results_that_pass_in_parts_agree_in_every_cycle_and_byte(dataflow, tmp_path):
    """Tiles whose sums take most of the accumulator, so that the next waits until they have passed, part by part.

    Products alone, with rows that stay, and of a layer: with residuals, and gates whose halves pass one by one.
    """
    kept = dataflow == "weight_stationary"
    sets = {"tile.scratchpad.capacity": "64 KiB", "tile.scratchpad.banks": 32, "tile.sequencer.program_words": 1024}
    sets |= {"tile.array.dataflow": dataflow, "tile.array.load_rows": 2 if kept else 1}
    tile, works = tile_of(SETS | sets), []
    tiles = [{"a": (24, 64, 16, "n_outer"), "c": (36, 48, 8, "m_outer")}]
    if kept:
        tiles.append({"a": (20, 64, 8, "m_kept"), "c": (33, 32, 24, "m_kept")})
    plans = [mapped(tile, fit_precision(tile, graph(tmp_path, PARTED))[0])] * len(tiles)
    model = LLAMA | {"hidden_size": 64, "intermediate_size": 144}
    plans.append(mapped(tile, fit_precision(tile, graph(tmp_path, model, ("sequence", "24")))[0]))
    names = {"qkv": (16, "n_outer"), "output": (16, "m_outer"), "gate_up": (32, "n_outer"), "down": (32, "m_outer")}
    tiles.append({f"layer.{name}": (24, 64, depth, order) for name, (depth, order) in names.items()})
    for plan, sizes in zip(plans, tiles, strict=True):
        made = with_tiles(plan, sizes)
        chosen = [each[name] for each in made.mapping.choice[1] for name in sizes if name in each]
        assert all(slots_of(tile.tile, "partial", each.divided.partial) == 1 for each in chosen)
        assert {each.tiling.passing for each in chosen} & {16, 32}
        works.append((str(len(works)), filled(made, len(works))))
    for case in (parity.case() for parity in check_programs(tile, works)):
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


@pytest.mark.slow(seconds=55)
def test_rows_that_stay_on_an_array_of_any_sides_agree_in_every_cycle_and_byte(tmp_path):
    """Tiles of their depth begin within lines, and of the last ones the array reads beyond the row."""
    odd = tile_of(SETS | ODD | {"tile.scratchpad.capacity": "64 KiB"})
    rows = tiled_rows(odd, tmp_path)
    assert {each.tiling.order for each in rows.tasks} == {"m_kept"}
    (parity,) = check_programs(odd, [("rows", filled(rows, 1))])
    case = parity.case()
    assert case.passed, case
    assert case.difference == 0
    assert case.bytes_compared > 1000


def tiled_pairs(tile, folder, products):
    """Three products whose tiles of rows stay in pairs: the last pair is one tile, or one and a shorter one."""
    made = graph(folder, products)
    described = yaml.safe_load(mapping_text(mapped(tile, made)))
    described["layout"].pop("values", None)
    for task, depth in zip(described["tasks"], (50, 24, 8), strict=True):
        task["gemm"] = {"m": 2, "n": 4, "k": depth, "order": "m_pairs", "resident": True}
    return lower(tile, made, mapping_of(Document.parse(yaml.safe_dump(described)), tile, made))


def tiled_rows(tile, folder):
    """Products whose rows stay in both slots: beside columns of the whole depth, of a part, and with a rest of each."""
    rows, columns = tile.tile.array.rows, 2 * tile.tile.array.cols
    depths = (6 * rows, 4 * rows, 2 * rows, 5 * rows)
    shapes = [(21, 2 * columns + 2, 6 * rows + number) for number in range(len(depths))]
    entries = [f"{{name: g{number}, m: {m}, n: {n}, k: {k}}}" for number, (m, n, k) in enumerate(shapes)]
    text = "\n  - ".join(["kind: gemms\nprecision: int8\ngemms:", *entries])
    made = graph(folder, text)
    described = yaml.safe_load(mapping_text(mapped(tile, made)))
    described["layout"].pop("values", None)
    for number, (task, depth, shape) in enumerate(zip(described["tasks"], depths, shapes, strict=True)):
        sizes = {"m": 12 + number, "n": columns, "k": depth, "order": "m_kept"}
        task["gemm"] = sizes | {"resident": depth == shape[2]}
    return lower(tile, made, mapping_of(Document.parse(yaml.safe_dump(described)), tile, made))


def staying(tile, folder, works):
    """Programs whose keys and values of a head stay for several tiles of queries: in one ring, or each in its own."""
    made = []
    for model, sets, apart in works:
        workload = graph(folder, model, *sets)
        keys = next(each for each in workload.operators() if isinstance(each, Attention)).kv_len
        made.append(tiled(tile, workload, 2, keys, 1, apart, True))
        refuse(tile, made[-1])
    return [(f"staying {number}", filled(each, number)) for number, each in enumerate(made)]


STAYING = [
    (LLAMA, (("sequence", "21"),), False),
    (GPT2, (("sequence", "17"), ("batch", "2")), True),
    (LLAMA, (("sequence", "32"),), False),  # all parts of the queries read the keys of the last one
]


@pytest.mark.slow(seconds=30)
def test_keys_that_stay_on_an_array_that_keeps_its_sums_agree_in_every_cycle_and_byte(tmp_path):
    tile = tile_of(SETS | {"tile.array.dataflow": "output_stationary", "tile.array.load_rows": "1"})
    (parity,) = check_programs(tile, staying(tile, tmp_path, STAYING[:1]))
    case = parity.case()
    assert case.passed, case
    assert case.difference == 0
    assert case.bytes_compared > 1000


@pytest.mark.slow(seconds=30)
def test_rows_that_are_carried_and_keys_that_stay_agree_in_every_cycle_and_byte(chip, tmp_path):
    for parity in check_programs(chip, carried(chip, tmp_path, CARRIED[:2]) + staying(chip, tmp_path, STAYING)):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


PARTS_OF_BLOCKS = [
    (GPT2, (("sequence", "29"),), (3, 4, 1)),
    (LLAMA, (("phase", "decode"), ("context", "45")), (1, 2, 2)),
    (LLAMA, (("sequence", "27"),), (2, 4, 1)),
]
"""As `CARRIED`, with tiles of half of a block of eight keys, and a quarter."""


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("dataflow", ["output_stationary", "weight_stationary"])
def test_tiles_of_a_part_of_a_block_of_keys_agree_in_every_cycle_and_byte(dataflow, tmp_path):
    sets = {"tile.array.cols": 8, "tile.array.dataflow": dataflow, "tile.sequencer.program_words": 2048}
    tile = tile_of(SETS | sets | ({"tile.array.load_rows": 1} if dataflow == "output_stationary" else {}))
    for parity in check_programs(tile, carried(tile, tmp_path, PARTS_OF_BLOCKS)):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0
        assert case.bytes_compared > 1000


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("sets", [SETS, SETS | ODD], ids=["small", "odd"])
def test_rows_that_are_carried_on_other_tiles_agree_in_every_cycle_and_byte(sets, tmp_path):
    """On one whose sides have little in common, tiles of keys are as many of its columns."""
    tile = tile_of(sets)
    times = tile.tile.array.cols / 4
    works = [(model, given, (queries, int(keys * times), heads)) for model, given, (queries, keys, heads) in CARRIED]
    for parity in check_programs(tile, carried(tile, tmp_path, works[2:])):
        case = parity.case()
        assert case.passed, case
        assert case.difference == 0


@pytest.mark.slow(seconds=2.5)
def test_a_program_with_another_address_leaves_other_bytes(chip, tmp_path):
    """The bytes of one weight tile further are other bytes: what is compared is not blind to them."""
    made = filled(mapped(chip, graph(tmp_path, PRODUCTS)), 3)
    right, wrong = made.loaded(), made.loaded()
    GoldenMachine(chip, right).run(made.program)
    place = next(n for n, i in enumerate(made.program.instructions) if i.opcode == Opcode.LOAD)
    moved = list(made.program.instructions)
    moved[place] = replace(moved[place], memory=replace(moved[place].memory, base=moved[place].memory.base + 32))
    GoldenMachine(chip, wrong).run(Program(tuple(moved), made.program.semaphores, made.program.operators))
    assert not np.array_equal(right, wrong)


@pytest.mark.slow(seconds=1)
def test_made_up_values_are_neither_cut_off_nor_zero(chip, tmp_path):
    work = mapped(chip, graph(tmp_path, GPT2, ("sequence", "16")))
    made = filled(work, 5)
    memory = made.loaded()
    GoldenMachine(chip, memory).run(made.program)
    for address, item in work.memory.objects():
        if item.role == "result":
            values = memory[address : address + item.size].view(np.int8)
            assert np.mean(np.abs(values.astype(int)) >= 127) < 0.4, item
            assert np.mean(values != 0) > 0.2, item


@pytest.mark.parametrize(
    ("name", "sets", "why"),
    [
        ("npu-edge-int8", [("tile_count", "2")], "2 tiles"),
        ("npu-edge-int8", [("tile.scratchpad.banks", "2")], "bank conflict"),
        ("npu-datacenter", [], "no circuit for the number format int8"),
        ("systolic-ws-8", [("tile.array.operands", "int32")], "RTL for int32 operands"),
    ],
)
def test_what_the_tile_does_not_run_is_refused_with_its_reason(name, sets, why, tmp_path):
    described = load_chip(name, sets)
    file = tmp_path / "list.yaml"
    file.write_text(PRODUCTS)
    work = map_workload(described, load_workload(str(file)))
    with pytest.raises(NotSupported, match=why):
        verify(described, workload=work)
