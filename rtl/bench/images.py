"""Main memory of a bench: how it comes to a simulator, and how what has changed comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
CHUNK_BYTES = 1 << 16
"""Bytes of memory that come back together where one of them may have been written."""
BLOCK_BYTES = 1 << 26
"""Bytes of a file that are written at once, so that a large memory is not copied as a whole."""


def chunk_words(bus: int) -> int:
    """Words of ``bus`` bytes that come back together."""
    return max(CHUNK_BYTES // bus, 1)


def write_image(path: Path, image: Bytes, bus: int, words: int) -> None:
    """Write ``words`` words of memory for ``$fread``, which takes the highest byte of a word first; the rest is zero.

    Parameters
    ----------
    path
        A file, replaced; what lies behind the image is a hole in it.
    image
        Bytes from address 0 on, a whole number of words.
    bus, words
        Bytes of a word, and how many words the bench's memory has.
    """
    block = max(BLOCK_BYTES // bus, 1) * bus
    with path.open("wb") as file:
        for begin in range(0, len(image), block):
            file.write(image[begin : begin + block].reshape(-1, bus)[:, ::-1].tobytes())
        file.truncate(words * bus)


def put_written(path: Path, memory: Bytes, bus: int) -> None:
    """Put the chunks that a bench wrote into ``memory``, in place; unknown digits read as zero.

    The file has, for each chunk, a line ``@N`` with the number of its first word in hexadecimal digits, and a line for
    each word, highest byte first. Words behind the end of ``memory`` are left out.
    """
    for first, text in _chunks(path):
        digits = text.lower().translate({ord(unknown): "0" for unknown in "xz"})
        found = np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(-1, bus)[:, ::-1].reshape(-1)
        place = memory[first * bus : first * bus + len(found)]
        place[:] = found[: len(place)]


def _chunks(path: Path) -> Iterator[tuple[int, str]]:
    """The number of each chunk's first word, and its digits."""
    with path.open(encoding="ascii") as file:
        first = -1
        lines: list[str] = []
        for line in file:
            if line.startswith("@"):
                if lines:
                    yield first, "".join(lines)
                first, lines = int(line[1:], 16), []
            else:
                lines.append(line.strip())
        if lines:
            yield first, "".join(lines)


def hex_image(image: Bytes, bus: int, words: int) -> str:
    """Memory for ``$readmemh``: one bus word a line, highest byte first."""
    padded = np.zeros(words * bus, np.uint8)
    padded[: len(image)] = image
    return "\n".join(row.tobytes()[::-1].hex() for row in padded.reshape(-1, bus)) + "\n"


def memory_image(path: Path, bus: int) -> Bytes:
    """The opposite of `hex_image`, for what ``$writememh`` wrote; unknown digits read as zero."""
    rows = []
    for line in path.read_text(encoding="ascii").splitlines():
        if line and not line.startswith(("//", "@")):
            rows.append(bytes.fromhex(line.strip().lower().replace("x", "0").zfill(2 * bus))[::-1])
    return np.frombuffer(b"".join(rows), np.uint8).copy()
