"""The tile's AXI4 ports carry identifiers, so that standard bus models are connected as they are."""

import re

import numpy as np
import pytest

from siliconloom.rtl.bench.runner import simulate, simulator_path
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.programs import random_program
from tests.rtl.npu import npu, small_chip

pytestmark = pytest.mark.rtl


@pytest.mark.slow(seconds=20)
def test_a_program_runs_on_cocotbext_axi_s_memory(tmp_path):
    """The memory that a random program leaves is that of the golden model; how long it takes is the memory's affair."""
    pytest.importorskip("cocotbext.axi")
    simulator = "icarus" if simulator_path("icarus") else "verilator"
    if simulator_path(simulator) is None:
        pytest.skip("no simulator is installed")
    chip, made = small_chip(), npu()
    program = random_program(chip, 11)
    memory = program.loaded()
    np.savez(
        tmp_path / "job.npz",
        memory=memory,
        base=program.base,
        words=len(program.program.instructions),
        semaphores=[each.initial for each in program.program.semaphores],
        result=str(tmp_path / "result.npz"),
    )
    sources = []
    for name, text in made.files.items():
        if name.endswith(".v") and "/" not in name:
            sources.append(tmp_path / name)
            sources[-1].write_text(text)
    simulate(
        sources,
        made.top,
        made.ports,
        simulator=simulator,
        folder=tmp_path,
        bench="tests.rtl.axi_ram_bench",
        environment={"LOOM_BENCH": str(tmp_path / "job.npz")},
    )
    result = np.load(tmp_path / "result.npz")
    expected = memory.copy()
    GoldenMachine(chip, expected).run(program.program)
    assert result["status"].tolist() == [2, 0, 0, 0], "done, and no error"
    np.testing.assert_array_equal(result["memory"], expected)


@pytest.mark.slow(seconds=14)
def test_identifiers_are_as_wide_as_described():
    made = npu()
    top = made.files[f"{made.top}.v"]
    for name in ("m_axi_arid", "m_axi_rid", "m_axi_awid", "m_axi_bid", "m_axi_program_arid", "m_axi_program_rid"):
        assert re.search(rf"\[3:0\] {name};", top), name
