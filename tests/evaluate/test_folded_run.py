"""The whole run as a page draws it, beside the totals of its result."""

from collections import Counter
from functools import cache

import pytest

from siliconloom.arch.isa import Opcode
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.timeline import folded_run


def totals(run):
    """Cycles of each unit and cause, and bytes, with every jump done as often as it says."""

    @cache
    def between(row, row_end, jump, jump_end):
        found = Counter()
        for number in range(jump, jump_end):
            before, _, times, *repeated = run.jumps[number]
            found += executions(row, before)
            row = before
            for key, value in between(*repeated).items():
                found[key] += times * value
        return found + executions(row, row_end)

    def executions(row, row_end):
        found = Counter()
        for number, waited, arrived, granted, cause, begin, end in run.rows[row:row_end]:
            instruction = run.instructions[number]
            unit = instruction.unit
            assert waited <= arrived <= granted <= begin <= end
            found[run.units[unit], "busy"] += instruction.busy
            found[run.units[unit], "instruction"] += arrived - waited
            found[run.units[unit], run.causes[cause]] += granted - arrived
            found[run.units[unit], run.causes[run.holder[unit]]] += begin - granted
            found[run.units[unit], run.causes[run.within[unit]]] += end - begin - instruction.busy
            found["bytes"] += instruction.moved
        return found

    return between(0, len(run.rows), 0, len(run.jumps))


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("chip", "workload", "sets"),
    [
        ("npu-edge-int8", "gpt2", {"layers": "3", "sequence": "96"}),
        ("npu-datacenter", "llama3-8b", {"phase": "decode"}),
        ("npu-datacenter", "llama3-70b", {}),
        ("systolic-os-8", "gpt2-block-gemms", {}),
        ("npu-cxl", "gpt2", {"layers": "2"}),
    ],
)
def test_a_folded_run_has_every_cycle_and_byte_of_the_result(chip, workload, sets):
    done = simulate(chip, workload, [(f"workload.{key}", value) for key, value in sets.items()])
    result, run = done.result(), folded_run(done)
    found = totals(run)
    assert run.left_out == 0
    assert found["bytes"] == sum(o["read_bytes"] + o["write_bytes"] for o in result["operators"])
    barriers = [i for i in done.plan.program.instructions if i.opcode == Opcode.BARRIER]
    blank = 0.1 * result["cycles"] if barriers else 0  # what a unit waits for at a barrier is no execution's
    for name in run.units:
        unit = result["units"][name]
        assert found[name, "busy"] == unit["busy_cycles"]
        for cause, cycles in unit["stall_cycles"].items():
            if cause != "finished":
                assert 0 <= cycles - found[name, cause.replace("_", " ")] <= blank
