"""Requests of memories and names of files that no machine has: one line, and at once."""

import pytest

from siliconloom.arch.errors import LoomError
from siliconloom.cli import main
from siliconloom.evaluate.dram import LAST_CYCLE, read_trace
from siliconloom.render.output import check_outputs


@pytest.mark.parametrize("cycle", [LAST_CYCLE + 1, 2**63 - 1, 2**63])
def test_a_request_after_the_last_cycle_is_refused(tmp_path, capsys, cycle):
    (tmp_path / "t.csv").write_text(f"cycle,op,address\n0,R,0\n{cycle},W,64\n")
    assert main(["dram", "hbm2", str(tmp_path / "t.csv")]) == 2
    assert "t.csv:3: " in capsys.readouterr().err


def test_a_request_in_the_last_cycle_is_read(tmp_path):
    (tmp_path / "t.csv").write_text(f"cycle,op,address\n{LAST_CYCLE},R,0\n")
    assert read_trace(tmp_path / "t.csv")[0].tolist() == [LAST_CYCLE]


def test_an_input_that_no_file_can_be_called_is_left_to_who_reads_it(tmp_path):
    check_outputs({"--json": tmp_path / "x"}, ["a\0b"])
    with pytest.raises(LoomError, match="cannot be written"):
        check_outputs({"--json": "a\0b"})


@pytest.mark.parametrize("command", ["sim {} gpt2", "plan {} gpt2", "workload {}", "gpu {}", "dram {} t.csv"])
def test_a_name_that_is_too_long_for_a_file_is_one_short_line(capsys, command):
    assert main(command.format("x" * 5000).split()) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), len(error) < 500) == (1, True)
