"""Random small graphs on random small tiles: the program that ``loom sim`` times, on the RTL.

``python -m tests.rtl.graphs FIRST COUNT`` runs so many tiles, `GRAPHS` graphs on each, and prints what differs.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

from siliconloom.arch import NotSupported
from siliconloom.arch.datatype import DataType
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.chip.engine import duration
from siliconloom.verification.filling import filled
from siliconloom.verification.npu import check_programs
from siliconloom.verification.random_tiles import random_npu
from siliconloom.verification.workload import refuse
from siliconloom.workloads import load_workload
from siliconloom.workloads.precision import PrecisionName

GROUP = 4
"""Rows of a group of packed weights."""
GRAPHS = 4
"""Graphs on each tile."""
TILES, INTEGER = 70, 50
"""Tiles, so that there are 280 pairs of a tile and a graph; the first ones compute in int8, the others pack weights."""
CELLS, LANES = 64, 8
"""Cells of an array, and lanes of a vector unit, at most: larger ones take Icarus minutes."""
MOST_LEFT = 60
"""Graphs that are drawn in vain for one tile, at most."""
CYCLES = 12_000
"""Cycles of a program at most."""


def random_tile(number):
    """A small tile of any shape and timing, with room for what a mapper lays out.

    From `INTEGER` on those in bf16 and fp16 whose weights are packed in groups of four rows; some have fp32 elements.
    """
    dtype = DataType.INT8 if number < INTEGER else (DataType.BF16, DataType.FP16)[number % 2]
    made = (random_npu(10_000 * number + n, any_sides=number % 2 == 1, dtype=dtype) for n in range(1000))
    chip = next(
        each
        for each in made
        if each.tile.array.rows * each.tile.array.cols <= CELLS
        and each.tile.vector.lanes <= LANES
        and (number < INTEGER or (each.tile.array.weights is not None and each.tile.array.load_rows <= GROUP))
    )
    tile = chip.tile
    changed = {
        "scratchpad": tile.scratchpad.model_copy(update={"capacity": 64 << 10, "banks": 16}),
        "accumulator": tile.accumulator.model_copy(update={"capacity": 4 * tile.array.cols * 512}),
        "sequencer": tile.sequencer.model_copy(update={"program_words": 2048}),
    }
    memory = {"dram": chip.memory["dram"].model_copy(update={"capacity": 64 << 20})}
    update = {"name": f"tile-{number}", "tile": tile.model_copy(update=changed), "memory": memory}
    return chip.model_copy(update=update)


def random_description(r):
    """A workload's description, and the keys that are set: products, or one or two layers of a model."""
    kind = r.choice(["gemms", "gpt2", "llama", "qwen2", "llama", "bert"])
    if kind == "gemms":
        gemms = [
            {
                "name": f"g{n}",
                "m": r.choice([1, r.randint(1, 30)]),
                "n": r.randint(1, 40),
                "k": r.choice([r.randint(1, 12), r.randint(1, 80)]),
                "batch": r.choice([1, 1, 2]),
            }
            for n in range(r.randint(1, 3))
        ]
        return {"kind": "gemms", "precision": "int8", "gemms": gemms}, []
    shared = r.choice([1, 2])
    heads, dim = shared * r.choice([1, 2]), 2 * r.randint(2, 8)
    if kind == "gpt2":
        model = {"n_embd": heads * dim, "n_head": heads, "n_layer": r.choice([1, 2]), "n_positions": 64}
    else:
        model = {
            "hidden_size": heads * dim,
            "num_attention_heads": heads,
            "num_key_value_heads": shared,
            "num_hidden_layers": r.choice([1, 2]),
            "intermediate_size": r.randint(5, 40),
            "max_position_embeddings": 64,
        }
    model |= {"model_type": kind, "vocab_size": r.randint(3, 40)}
    if kind == "bert":
        del model["num_key_value_heads"]
    else:
        model["tie_word_embeddings"] = r.random() < 0.5
    sets = [("phase", "decode"), ("context", str(r.randint(2, 40)))]
    if kind == "bert" or r.random() < 0.5:
        sets = [("sequence", str(r.randint(1, 12)))]
    return model, [*sets, ("batch", str(r.choice([1, 1, 2, 3])))]


def packed(model, sets, dtype):
    """The description with weights packed in such codes, its depths filled up to whole groups, or MX blocks."""
    name = next(each for each in PrecisionName if each.weights is dtype)
    group = name.packing(GROUP).group
    stated = {"precision": name.value} | ({} if name.in_blocks else {"weight_group": group})
    if "model_type" not in model:
        gemms = [{**each, "k": -(-each["k"] // group) * group} for each in model["gemms"]]
        return {**model, **stated, "gemms": gemms}, sets
    widths = {key: model[key] for key in ("n_embd", "hidden_size", "intermediate_size") if key in model}
    unit = max(8 * GROUP, group)  # heads stay even: a multiple of two groups for each of four heads at most
    return {**model, **{key: -(-width // unit) * unit for key, width in widths.items()}}, [
        *sets,
        *((key, str(value)) for key, value in stated.items()),
    ]


def random_pairs(number):
    """The number's tile, and `GRAPHS` mapped workloads that it runs, with how many were refused or too long."""
    chip, r, found, left = random_tile(number), random.Random(f"graphs {number}"), [], 0
    with tempfile.TemporaryDirectory() as folder:
        while len(found) < GRAPHS and left < MOST_LEFT:
            model, sets = random_description(r)
            if number >= INTEGER:
                model, sets = packed(model, sets, r.choice(chip.tile.array.weights.formats))
            file = Path(folder) / ("config.json" if "model_type" in model else "list.yaml")
            file.write_text(json.dumps(model))
            graph = load_workload(str(file), sets)
            mapped = map_workload(chip, graph, lambda program: duration(program, chip))
            try:
                refuse(chip, mapped)
            except NotSupported:
                left += 1
                continue
            if duration(mapped.program, chip) > CYCLES:
                left += 1
                continue
            found.append((json.dumps([model, sets]), mapped))
    return chip, found, left


def verified(number, simulator="icarus", graphs=slice(None)):
    """What is compared of the number's pairs, or of some of its graphs: description and case of each."""
    chip, found, _ = random_pairs(number)
    found = found[graphs]
    programs = [(name, filled(mapped, n)) for n, (name, mapped) in enumerate(found)]
    return [
        (name, p.case())
        for (name, _), p in zip(found, check_programs(chip, programs, simulator=simulator), strict=True)
    ]


def main():
    first, count = map(int, sys.argv[1:])
    wrong = 0
    for number in range(first, first + count):
        for name, case in verified(number):
            wrong += not case.passed
            said = f"{case.rtl_cycles:,} cycles, {case.bytes_compared:,} bytes"
            print(f"tile {number} {'agrees' if case.passed else 'DIFFERS'}: {said}: {name}", flush=True)
    print(f"{wrong} of {count * GRAPHS} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
