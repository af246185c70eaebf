"""Time to copy bytes from one memory level to another, such as a model's parameters from DDR into HBM before use.

A copy engine moves the bytes in chunks: each is read from the source, crosses the path, and is written to the target.
Reads, path and writes of different chunks overlap, so all but the first chunk take the time of the slowest of the
three, and the first takes all three one after the other:

    time = latency_source + latency_target + chunk / source + chunk / path + chunk / target
           + (chunks - 1) x chunk / min(source, path, target)

with the last chunk as long as what is left. With one chunk this is store and forward; with many it is the slowest
end's bandwidth. A chunk shorter than a stripe of a level is served by fewer of its devices (`striped_bytes`).
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch.errors import LoomError
from siliconloom.arch.memory import Memory
from siliconloom.sim.timing.units import striped_bytes


class Copy(Struct, frozen=True):
    """Outcome of a copy.

    Parameters
    ----------
    seconds
        From the first request to the last byte acknowledged.
    bandwidth
        Bytes per second on average.
    limit
        What sets the pace: ``source``, ``path`` or ``target``.
    """

    seconds: float
    bandwidth: float
    limit: str


def copy_time(
    source: Memory, target: Memory, size: int, *, chunk: int = 1 << 20, path: int | None = None, engines: int = 1
) -> Copy:
    """Time to copy ``size`` bytes from ``source`` to ``target``.

    Parameters
    ----------
    source, target
        Memory levels that are read and written.
    size, chunk
        Bytes in all, and bytes that are handed on at a time.
    path
        Bytes per second between the two, when something narrower than both joins them (a bus, a link).
    engines
        Equal sources and targets, each with its share of the bytes, such as the sockets of a node.

    Raises
    ------
    LoomError
        For a size, chunk or number of engines below one.
    """
    for name, value in (("size", size), ("chunk", chunk), ("engines", engines)):
        if value < 1:
            raise LoomError(f"a copy between memory levels needs a {name} of at least 1 (got {value})")
    share = -(-size // engines)
    chunks, rest = divmod(share, chunk)

    def stages(length: int) -> dict[str, float]:
        times = {
            "source": striped_bytes(source, 1, length) / source.total_bandwidth,
            "target": striped_bytes(target, 1, length) / target.total_bandwidth,
        }
        return times if path is None else {**times, "path": length / path}

    lengths = stages(min(chunk, share))
    limit = max(lengths, key=lambda name: lengths[name])
    seconds = (source.latency + target.latency) / 1e12 + sum(lengths.values())
    if chunks:
        seconds += (chunks - 1) * lengths[limit] + (max(stages(rest).values()) if rest else 0.0)
    return Copy(seconds, size / seconds, limit)


__all__ = ["Copy", "copy_time"]
