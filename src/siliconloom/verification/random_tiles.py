"""Small NPU tiles of random shape and timing, which have RTL: what random programs run on."""

from __future__ import annotations

import random
from typing import Any

from siliconloom.arch import Chip
from siliconloom.arch.datatype import CACHE_CODES, CACHE_SCALED, DataType
from siliconloom.arch.layout import is_power
from siliconloom.arch.timing import vector_stages

ANY_SIDE = (2, 3, 4, 5, 7, 8, 9, 12, 16, 20)
"""Rows and columns of arrays, most of them no powers of two."""


def random_npu(
    seed: int, any_sides: bool = False, dtype: DataType = DataType.INT8, elements: DataType | None = None
) -> Chip:
    """A small NPU of random shape and timing, one that has RTL.

    ``any_sides``: of arrays whose sides are no powers of two, and vector units whose lanes are not the array's columns.
    ``dtype``: the format that its circuits compute in. ``elements``: fp32 for an array in whole numbers that keeps
    weights.
    """
    chance = random.Random(seed)
    dataflow = chance.choice(["weight_stationary", "output_stationary", "input_stationary"])
    rows, cols = chance.choice([2, 4, 8]), chance.choice([2, 4, 8])
    bus, lanes = chance.choice([4, 8, 16, 32]), cols
    load_rows = chance.choice([1, 2, rows]) if dataflow != "output_stationary" else 1
    if any_sides:
        other = random.Random(f"{seed} any sides")
        rows, cols, lanes = other.choice(ANY_SIDE), other.choice(ANY_SIDE), other.choice([2, 4, 8, 16])
        at_once = [1, rows, *(part for part in (2, 3, 4) if rows % part == 0)]
        load_rows = other.choice(at_once) if dataflow != "output_stationary" else 1
    weights = random_weights(seed, dataflow, dtype, load_rows, cols)
    able = dtype in (DataType.BF16, DataType.FP16) and dataflow == "weight_stationary"
    wide = (able and random.Random(f"{seed} elements").random() < 0.4) or (
        elements is not None and dataflow == "weight_stationary"
    )
    what = f"{dtype.value}-{elements.value}" if elements is not None else dtype.value
    cols += elements is not None and dtype is DataType.INT4 and load_rows * cols % 2
    packs = elements is not None and wide and dtype is DataType.INT8
    if packs and is_power(load_rows) and load_rows * cols % 2 == 0 and seed % 3:
        weights = {"formats": ["int4"], "minima": seed % 3 == 1}
    cache = random_cache(seed, dtype, load_rows, wide) if able else []
    if cache and lanes % cols == 0 and is_power(lanes) and cols % load_rows == 0 and cols > 1:
        cache += random_scaled(seed, load_rows)
    edge = bool(weights) or any(kept != dtype.value for kept in cache)
    add_stages = random.Random(f"{seed} adders").choice([0, 0, 1, 2, 3]) if dataflow != "output_stationary" else 0
    element = random_element(seed, dataflow, dtype, add_stages)
    floats = wide or not dtype.is_integer
    sum_stages = random_sum_stages(seed) if floats else 1
    accumulate_stages = random_sum_stages(f"{seed} accumulator") if floats else 1
    unpack_stages = random.Random(f"{seed} unpacking").choice([0, 0, 1, 2, 3, 5, 8])
    registers = random.Random(f"{seed} registers").choice([0, 0, 10, 20, 30]) if floats else 0
    gigabytes = bus * chance.choice([1.0, 1.0, 0.8, 0.55, 0.3])
    return Chip.model_validate(
        {
            "kind": "chip",
            "name": f"random-{seed}" if what == DataType.INT8.value else f"random-{what}-{seed}",
            "clock": "1 GHz",
            "tile": {
                "kind": "npu",
                "array": {
                    "rows": rows,
                    "cols": cols,
                    "dataflow": dataflow,
                    "operands": [dtype.value],
                    "load_rows": load_rows,
                    "multiply_stages": chance.randint(0, 2),
                    "add_stages": add_stages,
                    "accumulate_stages": accumulate_stages,
                    "element": element,
                    **({"weights": weights} if weights else {}),
                    **({"cache": cache} if cache else {}),
                    **({"unpack_stages": unpack_stages} if edge else {}),
                },
                "scratchpad": {"capacity": "64 KiB" if wide else "16 KiB", "banks": chance.choice([8, 16])},
                "accumulator": {"capacity": f"{4 * cols * chance.choice([64, 128])} B"},
                "vector": {
                    "lanes": lanes,
                    "latency": vector_stages(sum_stages) + chance.randint(0, 13) + registers,
                    "sum_stages": sum_stages,
                    **({"format": "fp32"} if wide else {}),
                    "transpose_rows": random_together(seed, lanes),
                },
                "dma": {
                    "bytes_per_cycle": bus,
                    "outstanding": chance.choice([1, 2, 4, 16]),
                    "port_bytes": chance.choice([128, max(bus // 2, 4), max(bus // 4, 4)]),
                },
                "sequencer": {
                    "issue_cycles": chance.randint(2, 6),
                    "loop_cycles": chance.randint(1, 3),
                    "queue_depth": chance.choice([1, 2, 4, 8]),
                    "program_words": 64,
                },
            },
            "memory": {
                "dram": {
                    "kind": "lpddr5",
                    "capacity": "1 MiB",
                    "bandwidth": f"{gigabytes} GB/s",
                    "latency": f"{chance.randint(1, 60)} ns",
                    "access_bytes": bus * chance.choice([1, 1, 2, 4, 16]),
                }
            },
        }
    )


def random_element(seed: int, dataflow: str, dtype: DataType, add_stages: int) -> str:
    """How elements of an array sum: of whole numbers every second array has no adders, where it may have none."""
    if not dtype.is_integer or add_stages:
        return "multiply_add"
    without = ["carry_save", *(["compressor"] if dataflow == "output_stationary" else [])]
    return random.Random(f"{seed} sums").choice(["multiply_add", "multiply_add", *without])


def random_sum_stages(seed: object) -> int:
    """Cycles of an addition in floating point."""
    return random.Random(f"{seed} sums of rows").choice([1, 1, 2, 4])


def random_together(seed: int, lanes: int) -> int:
    """Rows that a vector unit of so many lanes transposes together."""
    powers = [1 << bit for bit in range(lanes.bit_length()) if lanes % (1 << bit) == 0]
    return random.Random(f"{seed} transposes").choice([1, *powers])


def random_weights(seed: int, dataflow: str, dtype: DataType, load_rows: int, cols: int) -> dict[str, Any] | None:
    """Formats of packed weights for an array, where it may have some."""
    chance = random.Random(f"{seed} weights")
    able = dtype in (DataType.BF16, DataType.FP16) and dataflow == "weight_stationary" and is_power(load_rows)
    if not able or load_rows * cols % 2 or chance.random() < 0.3:
        return None
    codes = chance.choice([["int4"], ["int8"], ["int4", "int8"], []])
    blocks = ["fp4_e2m1", "fp8_e4m3", "fp8_e5m2"]
    elements = chance.sample(blocks, chance.choice([1, 1, 2, 3])) if not codes or chance.random() < 0.4 else []
    return {"formats": [*codes, *elements]} | ({"minima": chance.random() < 0.6} if codes else {})


def random_cache(seed: int, dtype: DataType, load_rows: int, wide: bool) -> list[str]:
    """Formats of keys and values for an array in such operands, before elements that may be ``wide``."""
    chance = random.Random(f"{seed} cache")
    if not is_power(load_rows) or chance.random() < 0.3:
        return []
    formats = [each.value for each in (*CACHE_CODES, *[dtype][: int(wide)])]
    return chance.sample(formats, chance.randint(1, len(formats)))


def random_scaled(seed: int, load_rows: int) -> list[str]:
    """Formats with scales for an array that keeps keys and values in others, and may have these."""
    chance = random.Random(f"{seed} scales")
    able = [dtype.value for dtype in CACHE_SCALED if dtype is not DataType.INT4 or load_rows % 2 == 0]
    return chance.sample(able, chance.randint(0, len(able)))


__all__ = ["ANY_SIDE", "random_cache", "random_npu", "random_scaled", "random_together", "random_weights"]
