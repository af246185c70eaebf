"""Random NPU chips, small workloads, and single changes that can only make a chip better.

``python -m tests.mapper.chip.improvements SEED COUNT [tiny|odd]`` compares so many and prints the worst; ``tiny`` ones
are single products on arrays of 2 to 32 rows with 4 to 64 KiB of scratchpad. With ``had`` at the end the better chip is
compared with the smaller one's mapping on the better chip, where it is one there. ``... library`` compares chips and
models of the library, ``... arrays`` those with arrays of 8 to 128 rows and columns.
"""

import json
import random
import sys
import tempfile
from collections import Counter, defaultdict

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.document import Document
from siliconloom.evaluate.chip import Simulation, check_floors, simulate
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.program import lower
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.chip.engine import duration, run
from siliconloom.workloads import load_workload

KIB = 1024


def random_chip(r):
    """Key paths and numbers of a chip; any combination is legal."""
    dataflow = r.choice(["weight_stationary", "weight_stationary", "input_stationary", "output_stationary"])
    return {
        "clock": r.choice([500, 1000, 2000]) * 10**6,
        "tile_count": r.choice([1, 1, 2, 4, 8]),
        "tile.array.dataflow": dataflow,
        "tile.array.rows": r.choice([4, 8, 16, 32, 64, 128]),
        "tile.array.cols": r.choice([4, 8, 16, 32, 64, 128]),
        "tile.array.load_rows": 1 if dataflow == "output_stationary" else r.choice([1, 2, 4]),
        "tile.scratchpad.capacity": r.choice([64, 128, 256, 1024, 8192]) * KIB,
        "tile.accumulator.capacity": r.choice([16, 64, 256, 1024]) * KIB,
        "tile.vector.lanes": r.choice([4, 8, 16, 32, 64, 128]),
        "tile.dma.bytes_per_cycle": r.choice([16, 64, 256, 1024]),
        "memory.dram.bandwidth": r.choice([5, 25, 100, 400]) * 10**9,
        "memory.dram.latency": r.choice([20, 100, 500]),
        "memory.dram.access_bytes": r.choice([16, 64, 256]),
    }


def odd_chip(r):
    """The same, of arrays, units, memories and banks of any sizes."""
    sides = [5, 12, 24, 48, 96, 100, 128]
    return random_chip(r) | {
        "tile.array.rows": r.choice(sides),
        "tile.array.cols": r.choice(sides),
        "tile.array.load_rows": 1,
        "tile.scratchpad.capacity": r.choice([96, 100, 160, 333, 1000, 3000, 7777]) * KIB + r.choice([0, 0, 100, 512]),
        "tile.scratchpad.banks": r.choice([4, 5, 6, 7, 12, 16]),
        "tile.accumulator.capacity": r.choice([24, 50, 100, 333, 1000]) * KIB + r.choice([0, 0, 100]),
        "tile.vector.lanes": r.choice([6, 12, 16, 48, 100, 128]),
    }


def tiny_chip(r):
    """The same, of arrays of any few rows and columns whose buffers hold little of a product."""
    return {
        "clock": 10**9,
        "tile_count": r.choice([1, 1, 2]),
        "tile.array.dataflow": r.choice(["weight_stationary", "input_stationary", *["output_stationary"] * 2]),
        "tile.array.rows": r.choice([2, 4, 5, 8, 16, 32]),
        "tile.array.cols": r.choice([2, 3, 4, 6, 8, 16]),
        "tile.array.load_rows": 1,
        "tile.scratchpad.capacity": r.choice([4, 8, 16, 64]) * KIB,
        "tile.accumulator.capacity": r.choice([1, 2, 4, 16]) * KIB,
        "tile.vector.lanes": r.choice([2, 4, 8, 16]),
        "tile.dma.bytes_per_cycle": r.choice([4, 8, 16, 32]),
        "memory.dram.bandwidth": r.choice([1, 5, 25, 100]) * 10**9,
        "memory.dram.latency": r.choice([20, 100, 500]),
        "memory.dram.access_bytes": r.choice([4, 16, 64]),
    }


def tiny_workload(r):
    """A product, as the text of a description."""
    sizes = {
        "m": r.choice([1, 7, 33, 106, 512, r.randint(1, 600)]),
        "n": r.choice([1, 8, 106, 256, r.randint(1, 600)]),
        "k": r.choice([1, 16, 64, 106, 512, r.randint(1, 600)]),
    }
    return json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": [{"name": "g", **sizes}]})


def doubled(*paths):
    return lambda chip: {**chip, **{path: 2 * chip[path] for path in paths}}


def halved(path):
    return lambda chip: {**chip, path: chip[path] // 2}


IMPROVEMENTS = {
    "latency halved": halved("memory.dram.latency"),
    "array doubled": doubled("tile.array.rows", "tile.array.cols"),
    "tiles doubled": doubled("tile_count"),
    "dma doubled": doubled("tile.dma.bytes_per_cycle"),
    "clock doubled": doubled("clock"),
    "access halved": halved("memory.dram.access_bytes"),
    "scratchpad doubled": doubled("tile.scratchpad.capacity"),
    "accumulator doubled": doubled("tile.accumulator.capacity"),
    "bandwidth doubled": doubled("memory.dram.bandwidth"),
    "lanes doubled": doubled("tile.vector.lanes"),
}


TILES = (1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 15, 16)
WITH_A_PRICE = ("array doubled", "lanes doubled")


def random_workload(r):
    """A product or two, or a layer of a small transformer at prefill or decode, as the text of a description."""
    if r.random() < 0.55:
        gemms = [
            {
                "name": f"g{i}",
                "m": r.choice([1, 4, 64, 127, 512]),
                "n": r.choice([64, 127, 256, 768]),
                "k": r.choice([64, 127, 768, 2048]),
            }
            for i in range(r.choice([1, 2]))
        ]
        return json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms})
    heads = r.choice([4, 8])
    model = {
        "model_type": "llama",
        "hidden_size": heads * 64,
        "intermediate_size": 768,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": r.choice([2, heads]),
        "vocab_size": 1024,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    phase = r.choice(["prefill", "decode"])
    length = {"context": r.choice([128, 512])} if phase == "decode" else {"sequence": r.choice([32, 100, 256])}
    return json.dumps(
        {
            "kind": "transformer",
            "name": "small",
            "phase": phase,
            "batch": r.choice([1, 4]),
            **length,
            "precision": "int8",
            "model": model,
        }
    )


def workload(text):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return load_workload(file.name)


def made_chip(chip):
    """The chip of such key paths and numbers."""
    sets = {**chip, "memory.dram.latency": f"{chip['memory.dram.latency']} ns", "memory.dram.capacity": "64 GiB"}
    return load_chip("npu-edge-int8", [(path, _text(path, value)) for path, value in sets.items()])


def mapped(chip, graph):
    return simulate(made_chip(chip), graph)


def held_against_floors(chip, graph, *, searched):
    """The workload simulated and held against its floors, mapped by the search, or for a tenth of that by estimates."""
    if searched:
        return simulate(chip, graph)
    plan = map_workload(chip, graph)
    made = Simulation(chip, plan.graph, plan, run(plan.program, chip), 0.0, chip)
    check_floors(made)
    return made


def kept_seconds(smaller, better):
    """Time of the smaller chip's program on the better one."""
    return duration(smaller.plan.program, better.chip) / better.chip.clock


def had_seconds(smaller, better):
    """Time of the smaller chip's mapping on the better one; nothing where it is none there, as sizes are not legal."""
    chip, graph = better.plan.chip, better.plan.graph
    try:
        mapping = mapping_of(Document.parse(mapping_text(smaller.plan)), chip, graph)
        return duration(lower(chip, graph, mapping).program, chip) / chip.clock
    except LoomError:
        return None


def ratio(name, before, after):
    """Time on the better chip over what it may take there; see `comparisons`."""
    price = kept_seconds(before, after) if name in WITH_A_PRICE else 0
    return after.seconds / max(before.seconds, price)


def _text(path, value):
    if path == "clock":
        return f"{value} Hz"
    if path.endswith("capacity") and isinstance(value, int):
        return f"{value} B"
    return f"{value} B/s" if path.endswith("bandwidth") else str(value)


def comparisons(seed, count, *, tiny=False, odd=False, had=False):
    """(ratio of times, change, chip, workload) of so many comparisons; above 1 the better chip is slower.

    Some of what is doubled takes longer for a short instruction, whatever is mapped to it: an array from its first
    beat to its last sum (R + C cycles) and to load its rows, a vector unit to transpose as many lines as it has lanes.
    What these (`WITH_A_PRICE`) are compared with is the smaller chip, or the smaller chip's own program run on the
    better one where that is slower: the difference of those two is the circuit's and nothing else. All others are
    compared with the smaller chip. With ``had`` all are compared with the smaller chip's mapping on the better one.
    """
    r = random.Random(seed)
    made = 0
    while made < count:
        some = odd_chip if odd else random_chip
        chip, spec = (tiny_chip(r), tiny_workload(r)) if tiny else (some(r), random_workload(r))
        graph = workload(spec)
        try:
            before = mapped(chip, graph)
        except LoomError:
            continue
        for name in r.sample(sorted(IMPROVEMENTS), 3):
            try:
                after = mapped(IMPROVEMENTS[name](chip), graph)
            except LoomError:
                if name not in WITH_A_PRICE and not ((tiny or odd) and name == "dma doubled"):
                    raise
                continue  # a larger array or unit, or longer beats, can need more than the same memories hold
            made += 1
            if not had:
                yield ratio(name, before, after), name, chip, spec
            elif seconds := had_seconds(before, after):
                yield after.seconds / seconds, name, chip, spec


def one_tile_more(seed, count):
    """(ratio of times, tiles, chip, workload) of so many chips with a tile more, whose shares are all uneven ones."""
    r = random.Random(seed)
    made = 0
    while made < count:
        chip, spec = random_chip(r) | {"tile_count": r.choice(TILES)}, random_workload(r)
        graph = workload(spec)
        try:
            before = mapped(chip, graph)
        except LoomError:
            continue
        after = mapped({**chip, "tile_count": chip["tile_count"] + 1}, graph)
        yield after.seconds / before.seconds, chip["tile_count"], chip, spec
        made += 1


LIBRARY = (
    "gemmini-16",
    "npu-balanced",
    "npu-datacenter",
    "npu-edge",
    "npu-edge-int8",
    "npu-edge-mx",
    "npu-edge-w8a8",
    "tpu-v4",
)
"""Chips of tiles with one memory level that computes nothing."""
MODELS = (
    ("smollm2-135m", {"sequence": 128}),
    ("smollm2-135m", {"phase": "decode", "context": 256}),
    ("gpt2", {"sequence": 256}),
    ("gpt2", {"phase": "decode", "context": 512}),
    ("bert-base", {"sequence": 128}),
    ("llama3-8b", {"layers": 1, "sequence": 128}),
    ("pythia-1b", {"layers": 1, "sequence": 256}),
)


def library_comparisons(names=LIBRARY):
    """As `comparisons`: every improvement but those with a price, of chips of the library with each of the models."""
    for name in names:
        base = load_chip(name)
        (memory,) = base.memory
        own = {
            "clock": base.clock,
            "tile_count": base.tile_count,
            "tile.dma.bytes_per_cycle": base.tile.dma.bytes_per_cycle,
            "tile.scratchpad.capacity": base.tile.scratchpad.capacity,
            "tile.accumulator.capacity": base.tile.accumulator.capacity,
            "memory.dram.bandwidth": base.nearest.bandwidth,
            "memory.dram.latency": base.nearest.latency,
            "memory.dram.access_bytes": base.nearest.access_bytes,
        }

        def timed(graph, changed, name=name, own=own, memory=memory):
            sets = {path: value for path, value in changed.items() if value != own[path]}
            texts = {p: f"{v} ps" if p.endswith("latency") else _text(p, v) for p, v in sets.items()}
            return simulate(load_chip(name, [(p.replace("dram", memory), text) for p, text in texts.items()]), graph)

        for model, stated in MODELS:
            graph = load_workload(model, [(key, str(value)) for key, value in stated.items()])
            before = timed(graph, own).seconds
            for change in IMPROVEMENTS:
                if change not in WITH_A_PRICE:
                    yield timed(graph, IMPROVEMENTS[change](own)).seconds / before, change, name, f"{model} {stated}"


ARRAYS = {name: name for name in LIBRARY if name not in ("gemmini-16", "tpu-v4")} | {
    "npu-edge in w4a16": "npu-edge",
    "npu-edge-w4a8": "npu-edge-w4a8",
}
"""Chips whose arrays are made as large as others', by what the comparison is called."""
PROMPTS_AND_TOKENS = (
    ("gpt2", {"sequence": 1024}),
    ("gpt2", {"phase": "decode", "context": 512}),
    ("smollm2-135m", {"sequence": 256}),
    ("smollm2-135m", {"phase": "decode", "context": 256}),
    ("llama3-8b", {"layers": 1, "sequence": 128}),
    ("llama3-8b", {"layers": 1, "phase": "decode", "context": 512}),
)


def array_comparisons(names=tuple(ARRAYS), models=PROMPTS_AND_TOKENS, sides=(8, 16, 32, 64, 128)):
    """As `comparisons`: arrays of twice the sides, all else as it is, of chips of the library with each of the models.

    A larger array may need more than the same memories hold: it is not compared, nor is the next one.
    """
    for name in names:
        for model, stated in models:
            sets = {**stated, **({"precision": "w4a16"} if name.endswith("w4a16") else {})}
            graph, before = load_workload(model, [(key, str(value)) for key, value in sets.items()]), None
            for side in sides:
                array = [(f"tile.array.{each}", str(side)) for each in ("rows", "cols")]
                try:
                    after = simulate(load_chip(ARRAYS[name], array), graph)
                except LoomError:
                    before = None
                    continue
                if before is not None:
                    yield ratio("array doubled", before, after), "array doubled", f"{name} {side}", f"{model} {stated}"
                before = after


def main(seed, count=0, *kinds):
    some = {"library": library_comparisons, "arrays": array_comparisons}.get(seed)
    asked = {kind: kind in kinds for kind in ("tiny", "odd", "had")}
    found = list(comparisons(int(seed), int(count), **asked) if some is None else some())
    slower, times, worst = Counter(), Counter(), defaultdict(float)
    for ratio, name, _, _ in found:
        times[name] += 1
        slower[name] += ratio > 1.01
        worst[name] = max(worst[name], ratio)
    for name in IMPROVEMENTS:
        print(f"{name:20s} {times[name]:5d} compared, {slower[name]:4d} more than 1 % slower, worst {worst[name]:.3f}")
    print(f"all {len(found)}: {sum(slower.values())}")
    for ratio, name, chip, spec in sorted(found, key=lambda f: -f[0])[:8]:
        print(f"{ratio:.3f} {name} {chip} {spec}")


if __name__ == "__main__":
    main(*sys.argv[1:])
