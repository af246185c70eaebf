"""Folders that commands work in: gone at the end, and after a kill with the next command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import siliconloom
from siliconloom.arch import working
from siliconloom.arch.working import working_folder

HOLD = """
import sys, time
from siliconloom.arch.working import working_folder
with working_folder("verify") as folder:
    (folder / "rtl").mkdir()
    print(folder, flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def hold(place):
    """A process that works in a folder."""
    path = str(Path(siliconloom.__file__).parents[1])
    made = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": path},
    )
    return made, Path(made.stdout.readline().strip())


def test_a_folder_is_there_for_its_block(place):
    with working_folder("synth") as folder:
        assert folder.parent == place
        (folder / "rtl").mkdir()
    assert not list(place.iterdir())


def test_a_killed_commands_folder_goes_with_the_next_a_living_ones_stays(place):
    dead, left = hold(place)
    living, kept = hold(place)
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert left.is_dir()
        with working_folder("verify"):
            assert not left.exists()
            assert (kept / "rtl").is_dir()
    finally:
        living.kill()
        living.wait()
        for each in (dead, living):
            each.stdout.close()


def test_what_is_not_known_to_be_remains_stays(place):
    (place / "loom-verify-mine").mkdir()
    (place / "loom-verify-01234567").write_text("a file")
    (place / "loom-synth-abcdefgh").symlink_to(place / "loom-verify-mine")
    (place / "loom-synth-00000000").mkdir()  # just made: its process has yet to lock it
    old = place / "loom-synth-11111111"
    old.mkdir()
    os.utime(old, (time.time() - 2 * working.GRACE_S,) * 2)
    with working_folder("verify"):
        pass
    assert sorted(each.name for each in place.iterdir()) == [
        "loom-synth-00000000",
        "loom-synth-abcdefgh",
        "loom-verify-01234567",
        "loom-verify-mine",
    ]


def test_nothing_is_removed_where_nothing_can_be_locked(place, monkeypatch):
    left = place / "loom-verify-01234567"
    left.mkdir()
    (left / working.LOCK).touch()

    def fails(*_):
        raise OSError("no locks")

    monkeypatch.setattr("siliconloom.arch.files.flock", fails)
    with working_folder("verify"):
        assert left.is_dir()
