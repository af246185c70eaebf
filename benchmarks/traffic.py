"""How many bytes the products of a prompt move, beside what the buffers of their chip make any mapping move.

``python -m benchmarks.traffic`` maps prompts of five models to six chips for time and for bytes, and prints what all
products of each move over the finite-buffer bound (`mapper.chip.bounds`): the weighted total and the worst product.
``--products`` prints each of them, ``--chips`` and ``--models`` take some of them. It takes a minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from msgspec import Struct

from siliconloom.arch import LoomError, load_chip
from siliconloom.evaluate.objectives import map_for
from siliconloom.mapper.chip.bounds import least_traffic
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import Gemm, load_workload

CHIPS = ("npu-datacenter", "npu-balanced", "tpu-v4", "npu-edge-w8a8", "npu-edge", "npu-edge-int8")
MODELS = ("llama3-8b", "llama2-7b", "gpt2", "bert-base", "smollm2-135m")
LENGTHS = (128, 512, 2048)
OBJECTIVES = ("time", "traffic")
LONGEST = {"gpt2": 1024, "bert-base": 512}
"""Positions that a model has, where they are fewer than the longest prompt."""


class Moved(Struct, frozen=True):
    """What all executions of a product move, the fewest bytes that they could, and the tiling."""

    name: str
    moved: int
    least: int
    tiling: str

    @property
    def ratio(self) -> float:
        """Bytes over the fewest."""
        return self.moved / self.least


def products(chip_name: str, model: str, length: int, objective: str) -> tuple[int, list[Moved]]:
    """Cycles of the estimate, and the products of a prompt."""
    chip, graph = load_chip(chip_name), load_workload(model, [("sequence", str(length))])
    plan = map_for(objective, chip, graph)
    mapping, found = plan.mapping, list[Moved]()
    assert mapping is not None
    for part, chosen in zip(mapping.parts, mapping.choice[1], strict=True):
        for task in part.tasks:
            if not isinstance(task.operator, Gemm):
                continue
            each = chosen[task.operator.name]
            moved = each.share.tiles * (each.tiling.read_bytes + each.tiling.write_bytes)
            least = least_traffic(chip, task.operator, task.fused)
            t = each.tiling
            how = f"{t.m} x {t.n} x {t.k} {t.order}{' kept' if t.resident else ''} on {each.share.tiles}"  # type: ignore[union-attr]
            found.append(Moved(task.operator.name, part.count * moved, part.count * least, how))
    return Stopwatch(chip)(plan.program), found


def cases(chips: tuple[str, ...], models: tuple[str, ...]) -> Iterator[tuple[str, str, int]]:
    """Prompts of each model on each chip, no longer than the model takes."""
    for chip in chips:
        for model in models:
            for length in LENGTHS:
                if length <= LONGEST.get(model, length):
                    yield chip, model, length


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="*", default=CHIPS)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--products", action="store_true", help="each of them")
    asked = parser.parse_args()
    for chip, model, length in cases(tuple(asked.chips), tuple(asked.models)):
        line = f"{chip:15} {model:13} {length:5}"
        try:
            plans = {objective: products(chip, model, length, objective) for objective in OBJECTIVES}
        except LoomError as error:
            print(f"{line}  {error}")
            continue
        rows = list[str]()
        for objective, (cycles, found) in plans.items():
            total = sum(each.moved for each in found) / sum(each.least for each in found)
            worst = max(found, key=lambda each: each.ratio)
            line += f"  {cycles:14,} {total:5.2f} {worst.ratio:5.2f} {worst.name:16}"
            rows += [
                f"    {objective:8} {each.name:18} {each.moved / 2**20:10.1f} MiB {each.ratio:5.2f}  {each.tiling}"
                for each in found
            ]
        print(line, flush=True)
        if asked.products:
            print("\n".join(rows))


if __name__ == "__main__":
    main()
