"""The console script: Ctrl-C that comes while the command line is imported is told in a line."""

import subprocess
import sys

import pytest

LATE = "import siliconloom.cli as cli; cli.entry = stop"
EARLY = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "siliconloom.cli":
            stop()
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(("when", "told"), [(EARLY, "nothing was begun"), (LATE, "nothing was left half written")])
def test_an_interrupt_is_one_line_however_early_it_comes(when, told):
    code = f"""import sys
def stop(*_):
    raise KeyboardInterrupt
{when}
from siliconloom.start import loom
loom()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert done.stderr == f"loom: interrupted; {told}\n"
