"""The folder of a design: whole at any time, whoever is killed, and with everything of the user's in it."""

import hashlib
import json
import os
import random
import signal
import stat
import time

import pytest

from siliconloom.arch.errors import LoomError
from siliconloom.cli import main
from siliconloom.rtl import folder as module
from siliconloom.rtl.folder import SCHEMA, SEAL, SIDECAR, as_text, check_folder, sealed, write_folder
from siliconloom.rtl.names import KEYWORDS, module_prefix

KILLS = 60


def design(version=0, chip="mine", extra=()):
    """Files of a design, alike in name and different in content by version."""
    names = [f"{chip}_{i}.v" for i in range(12)] + ["bench/tb.v", "software/driver.c", "README.md", *extra]
    files = {name: f"// {name}, version {version}\n" * 40 for name in names}
    files[SIDECAR] = as_text(sealed({"schema": SCHEMA, "chip": chip}, files))
    return files


def write(folder, *arguments, **options):
    files = design(*arguments, **options)
    write_folder(folder, files, json.loads(files[SIDECAR])["chip"])


def change(sidecar, edit):
    found = json.loads(sidecar.read_text())
    edited = edit(found)
    sidecar.write_text(as_text(edited if isinstance(edited, dict) else found))


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_whole(folder):
    """Everything that the sidecar lists is there, of one version."""
    found = content(folder)
    sums = json.loads(found[SIDECAR])["sha256"]
    assert {name: hashlib.sha256(found[name].encode()).hexdigest() for name in sums} == sums
    return found


def forked(work):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


@pytest.mark.parametrize(
    "at_once", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["exchange", "two renames"]
)
def test_a_kill_at_any_time_leaves_a_whole_folder(tmp_path, seed, monkeypatch, at_once):
    if not at_once:
        monkeypatch.setattr(module.ctypes, "CDLL", lambda *_, **__: None)
    draw, folder = random.Random(seed), tmp_path / "out"
    write(folder)
    (folder / "synth").mkdir()
    (folder / "synth" / "notes.txt").write_text("a week of work")
    for kill in range(KILLS):

        def work(kill=kill):
            for version in range(10**6):
                write(folder, f"{kill}.{version}")

        child = forked(work)
        time.sleep(draw.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if at_once:
            found = assert_whole(folder)
            assert found["synth/notes.txt"] == "a week of work"
        if kill % 4 == 0:
            write(folder, f"after {kill}")
            assert assert_whole(folder)["synth/notes.txt"] == "a week of work"
            assert sorted(p.name for p in tmp_path.iterdir()) == ["out"], "nothing is left beside it"


@pytest.mark.slow(seconds=1)
def test_three_writers_at_once_wait_for_each_other(tmp_path):
    folder = tmp_path / "out"

    def work():
        for version in range(30):
            write(folder, f"{os.getpid()}.{version}")

    children = [forked(work) for _ in range(3)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert_whole(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_files_of_the_user_move_along(tmp_path):
    folder = tmp_path / "out"
    write(folder, extra=["old.v"])
    folder.chmod(0o750)
    (folder / "bench" / "waves.vcd").write_text("waves")
    (folder / "empty").mkdir()
    (folder / "bench" / "link").symlink_to("waves.vcd")
    (folder / "mine_3.v").unlink()  # a listed file that is gone is written again
    write(folder, 1, extra=["new.v"])
    found = assert_whole(folder)
    assert found["bench/waves.vcd"] == "waves"
    assert (folder / "empty").is_dir()
    assert (folder / "bench" / "link").is_symlink()
    assert "new.v" in found
    assert "old.v" not in found
    assert folder.stat().st_mode & 0o777 == 0o750


def test_files_and_folders_keep_their_modes_and_new_ones_follow_the_umask(tmp_path):
    folder, before = tmp_path / "out", os.umask(0o027)
    try:
        write(folder)
        (folder / "mine_0.v").chmod(0o600)
        (folder / "bench/tb.v").chmod(0o444)
        (folder / "bench").chmod(0o700)
        folder.chmod(0o711)
        write(folder, 1, extra=["more.v"])
    finally:
        os.umask(before)
    assert assert_whole(folder)["mine_0.v"] == design(1)["mine_0.v"]
    kept = {"mine_0.v": 0o600, "bench/tb.v": 0o444, "bench": 0o700, ".": 0o711, "mine_1.v": 0o640, "more.v": 0o640}
    assert {name: stat.S_IMODE((folder / name).stat().st_mode) for name in kept} == kept


def test_without_hard_links_files_of_the_user_are_copied(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    write(folder)
    (folder / "notes.txt").write_text("mine")
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError("no links here")))
    write(folder, 1)
    assert assert_whole(folder)["notes.txt"] == "mine"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda f: (f / "mine_1.v").write_text("edited"), "edited since siliconloom wrote them: mine_1.v;"),
        (lambda f: [(f / f"mine_{i}.v").write_text("x") for i in range(5)], "mine_0.v, mine_1.v, mine_2.v and 2 more"),
        (lambda f: (f / "new.v").write_text("x"), "new.v is not siliconloom's"),
        (lambda f: (f / SIDECAR).unlink(), "did not write"),
        (lambda f: change(f / SIDECAR, lambda found: found | {"top": "mine"}), f"edited .*: {SIDECAR};"),
        (lambda f: change(f / SIDECAR, lambda found: found["sha256"].pop("mine_1.v")), f"edited .*: {SIDECAR};"),
        (lambda f: change(f / SIDECAR, lambda found: found.pop(SEAL)), "did not seal"),
        (lambda f: (f / SIDECAR).write_text("[" * 100_000), "did not write"),
    ],
)
def test_what_would_be_lost_is_refused(tmp_path, harm, words):
    folder = tmp_path / "out"
    write(folder)
    harm(folder)
    before = content(folder)
    with pytest.raises(LoomError, match=words):
        write(folder, 1, extra=["new.v"])
    assert content(folder) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_another_chip_is_refused(tmp_path):
    write(tmp_path / "out")
    with pytest.raises(LoomError, match="holds the Verilog of mine, not other; name another folder"):
        check_folder(tmp_path / "out", "other")


@pytest.mark.parametrize("name", [".", "link", "file", "file/below", "/proc/x", ".."])
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch, capsys, name):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "siliconloom.verification.emission.complete_rtl", lambda *_, **__: pytest.fail("it began to generate")
    )
    assert main(["rtl", "systolic-ws-8", "-o", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link", "real"]


def test_what_came_while_the_folder_was_made_is_kept(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    write(folder)
    exchange = module._exchange

    def late(staging, place):
        (place / "late.txt").write_text("late")
        exchange(staging, place)

    monkeypatch.setattr(module, "_exchange", late)
    write(folder, 1)
    assert assert_whole(folder)["late.txt"] == "late"


def test_no_module_is_called_like_a_word_of_the_language():
    assert {module_prefix(word) for word in KEYWORDS} & KEYWORDS == set()
    assert module_prefix("npu-edge-int8") == "npu_edge_int8"
    assert {"module", "begin", "input", "logic", "endclass"} <= KEYWORDS
