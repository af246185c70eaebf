"""1,000 hostile commands in four parts: each ends with an agreed status and one line, in bounds of time and memory.

The cases are those of ``python -m benchmarks.fuzz``, whose long form runs 20,000; seeds follow ``--hypothesis-seed``.
"""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PARTS = 8
CASES = 1000


@pytest.mark.slow(seconds=40)
@pytest.mark.checkout
@pytest.mark.parametrize("part", range(PARTS))
def test_no_command_fails_in_any_way_but_the_agreed_ones(part, seed):
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz", "--cases", str(CASES // PARTS), "--seed", str(PARTS * seed + part)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert f"{CASES // PARTS} cases, 0 failed" in made.stdout
