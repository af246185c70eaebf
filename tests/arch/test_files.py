"""Writing and reading files: nothing is replaced that is not a file, nothing is half written, nothing is unbounded."""

import gzip
import os
import signal
import stat
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import MAX_MESSAGE, LoomError, one_line, shortened
from siliconloom.arch.files import SUFFIX, check_writable, write_file
from siliconloom.arch.inputs import read_input


def parts(folder):
    return [p.name for p in folder.iterdir() if p.name.endswith(SUFFIX)]


def test_a_link_is_followed_and_stays(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to("below/target")
    for text in (b"one", b"two"):  # a target that is to be, and one that is there
        write_file(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "below" / "target").read_bytes() == text


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000])
def test_what_another_file_holds_is_copied_in_parts(tmp_path, monkeypatch, size):
    monkeypatch.setattr("siliconloom.arch.files.CHUNK", 100)
    source = tmp_path / "source"
    source.write_bytes(bytes(number % 251 for number in range(size)))
    write_file(tmp_path / "copy", source)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    with pytest.raises(LoomError, match="No such file"):
        write_file(tmp_path / "copy", tmp_path / "none")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert parts(tmp_path) == []


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o4711])
def test_a_mode_is_kept(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_file(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_follows_the_mask(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_file(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


def test_a_pipe_is_written_through(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_file(path, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert path.is_fifo()


def test_a_device_is_written_through(tmp_path):
    before = os.stat("/dev/null")
    write_file("/dev/null", b"gone")
    (tmp_path / "null").symlink_to("/dev/null")
    write_file(tmp_path / "null", b"gone")
    after = os.stat("/dev/null")
    assert (after.st_mode, after.st_rdev, after.st_ino) == (before.st_mode, before.st_rdev, before.st_ino)
    with pytest.raises(LoomError, match="cannot be written: No space left on device"):
        write_file("/dev/full", b"too much")


def test_an_open_descriptor_is_written_to(tmp_path):
    with (tmp_path / "file").open("w+b") as file:
        write_file(f"/dev/fd/{file.fileno()}", b"to it")
        assert os.fstat(file.fileno()).st_nlink == 1
        assert (tmp_path / "file").read_bytes() == b"to it"


def test_remains_of_killed_writers_are_swept_and_living_ones_left(tmp_path):
    child = os.fork()
    if child == 0:
        try:
            while True:
                write_file(tmp_path / "file", b"x" * 2**22)
        finally:
            os._exit(1)
    while not parts(tmp_path):
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (tmp_path / f".other.0123{SUFFIX}").write_text("of one that was killed before")
    write_file(tmp_path / "file", b"whole")
    assert parts(tmp_path) == []
    assert (tmp_path / "file").read_bytes() == b"whole"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loop", "cannot be written"),
        ("no/file", "does not exist"),
        (".", "is a folder"),
        ("nul\0l", "cannot be written"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(tmp_path, name, words):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(LoomError, match=words):
        check_writable(tmp_path / name)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=2000))
def test_a_message_is_one_line_that_moves_no_cursor(text):
    message = str(LoomError(text))
    assert len(message) <= MAX_MESSAGE
    assert message.splitlines() in ([], [message])
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in message)
    assert one_line(message) == message
    assert shortened(text, 50) == text if len(text) <= 50 else len(shortened(text, 50)) == 50


@pytest.mark.parametrize("name", ["bomb.csv.gz", "bomb.csv", "/dev/zero"])
def test_no_more_is_read_than_may_be(tmp_path, name):
    path = tmp_path / name
    most = 2**20
    if name.endswith(".gz"):
        with gzip.open(path, "wb", 9) as file:
            for _ in range(100):
                file.write(bytes(2**20))
    elif name != "/dev/zero":
        path.write_bytes(bytes(100 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(LoomError, match="over 1 MiB, more than a trace may have"):
            read_input(path, most, "trace")
        assert tracemalloc.get_traced_memory()[1] < 8 * most
    finally:
        tracemalloc.stop()


CUT = gzip.compress(b"cut off" * 1000, mtime=0)[:50]


@pytest.mark.parametrize("packed", [b"no gzip", CUT, b"\x1f\x8b\x08" + bytes(20)], ids=["plain", "cut", "header"])
def test_a_damaged_archive_is_one_line(tmp_path, packed):
    (tmp_path / "t.gz").write_bytes(packed)
    with pytest.raises(LoomError, match=r"t\.gz: cannot be read"):
        read_input(tmp_path / "t.gz", 2**20)
