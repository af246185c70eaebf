"""What a plan says of a chip's FLOP/s, and of its peak: the same arithmetic in one line."""

import re

import pytest

from siliconloom.cli import main


@pytest.mark.parametrize("length", [2048, 65536])
def test_what_is_reached_is_of_the_flops_beside_it(length, capsys):
    """915.7 TFLOP/s, in which scores count that a mask saves, stood beside 54.6 % of 989.4, in which none do."""
    sets = {"workload.phase": "training", "workload.batch": 64, "workload.sequence": length}
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    assert main(["plan", "dgx-h100x8", "llama3-8b", *words]) == 0
    shown = re.search(
        r"per chip +([\d.]+) TFLOP/s; ([\d.]+) without masked scores, ([\d.]+)% of the peak", capsys.readouterr().out
    )
    assert shown is not None
    model, computed, reached = map(float, shown.groups())
    assert computed < model
    assert reached == pytest.approx(100 * computed / 989.4, rel=0.002)
