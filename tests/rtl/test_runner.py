"""What a bench's build finds on its path."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from siliconloom.rtl.bench import runner


@pytest.mark.parametrize("ours", [False, True])
def test_a_build_runs_scripts_by_this_python_whichever_is_first_on_the_path(ours, tmp_path, monkeypatch):
    if not (Path(sys.executable).parent / "python3").exists():
        pytest.skip("this Python is not called python3")
    other = tmp_path / "python3"
    if ours:
        other.symlink_to(sys.executable)
    else:
        other.write_text("#!/bin/sh\nexit 1\n")
        other.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(runner, "simulator_path", lambda simulator: "/nowhere")
    with runner._environment("verilator"):
        found = shutil.which("python3")
        assert os.path.realpath(found) == os.path.realpath(sys.executable)
        assert (Path(found).parent == tmp_path) is ours
        assert os.environ["PATH"].startswith("/nowhere" + os.pathsep)
    assert os.environ["PATH"] == path
