"""Passes over a rank, and what must live between them, from a cascade's dependences alone.

A *pass* visits the coordinates of a rank once, in order. An Einsum that walks along the rank can share a pass with
whatever it reads at the same coordinate or an earlier one; what is reduced over the whole rank is there only when a
pass has ended, so its readers that walk along the rank need a further one (Nayak et al., "FuseMax", MICRO 2024,
section IV: numerically stable softmax attention takes three passes over the keys, two with the division deferred, one
with running maxima). Each Einsum is placed in its earliest pass, which makes their number the least of all schedules
that compute every element once. Coordinates are visited in ascending order.
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.workloads.cascades.einsum import Cascade, ExtendedEinsum, TensorAccess


class PassPlan(Struct, frozen=True):
    """In which pass over one rank every Einsum is.

    Parameters
    ----------
    rank
        The rank.
    count
        Passes over it.
    at
        Of each Einsum, by its place in the cascade: the pass that it is in, from one, where it walks along the rank;
        otherwise the number of passes that have ended when it can be computed.
    walks
        Of each Einsum whether it walks along the rank.
    crossing
        Tensors that lie along the rank and are read in a later pass than the one that makes them, with the passes
        that read them; of an input all passes but the first that reads it.
    whole
        Tensors of which all earlier coordinates are read again at each (causal attention), in one pass.
    state
        Tensors of an iterative rank, which the step after reads, and running sums.
    """

    rank: str
    count: int
    at: tuple[int, ...]
    walks: tuple[bool, ...]
    crossing: dict[str, tuple[int, ...]]
    whole: tuple[str, ...]
    state: tuple[str, ...]


def plan_passes(cascade: Cascade, rank: str) -> PassPlan:
    """Place every Einsum in its earliest pass over ``rank``; raises `LoomError` where a tensor needs itself."""
    time = [_time(cascade, e, rank) for e in cascade.einsums]
    needs = [list(_needs(cascade, place, rank, time)) for place in range(len(cascade.einsums))]
    at = [int(bool(walks)) for walks in time]
    for _ in range(len(at) * (len(at) + 1) + 1):
        before = list(at)
        for place, its in enumerate(needs):
            at[place] = max([at[place], *(at[other] + ends for other, ends in its)])
        if at == before:
            break
    else:
        names = [e.name for e, now, then in zip(cascade.einsums, at, before, strict=True) if now != then]
        raise LoomError(f"{cascade.name}: {names[0]} needs a whole pass over {rank} of what needs {names[0]}")
    return PassPlan(
        rank,
        max([at[p] for p, walks in enumerate(time) if walks], default=0),
        tuple(at),
        tuple(map(bool, time)),
        _crossing(cascade, rank, at, time),
        tuple(dict.fromkeys(_whole(cascade, rank, time))),
        tuple(dict.fromkeys(_state(cascade, rank, time))),
    )


def _time(cascade: Cascade, einsum: ExtendedEinsum, rank: str) -> str:
    """The variable that says where along the rank an Einsum is; empty where it does not walk along it."""
    mine = [v for v in einsum.variables if cascade.ranks[v] == rank]
    return mine[0] if mine else ""


def _place(cascade: Cascade, access: TensorAccess, rank: str) -> tuple[str, int] | None:
    """Variable and offset of an access along the rank; no variable where the coordinate is fixed, none if it has none.

    Of several coordinates along the rank (scores of queries and keys of one sequence) the first counts.
    """
    for coordinate in access.coordinates:
        if coordinate.variable and cascade.ranks[coordinate.variable] == rank:
            return coordinate.variable, coordinate.offset
    if any(c.rank == rank for c in access.coordinates):
        return "", 0
    return None


def _needs(cascade: Cascade, place: int, rank: str, time: list[str]) -> list[tuple[int, int]]:
    """Einsums that another reads from, each with one where it waits for the end of their pass, else zero."""
    einsum, mine = cascade.einsums[place], time[place]
    found = list[tuple[int, int]]()
    for access in einsum.inputs:
        for other, producer in enumerate(cascade.einsums):
            if producer.name != access.tensor:
                continue
            ends = int(bool(mine))
            written, read = _place(cascade, producer.output, rank), _place(cascade, access, rank)
            if mine and time[other] and written and written[0] and read and read[0]:
                ahead = read[1] - written[1]
                if read[0] == mine:
                    if ahead > 0:
                        raise NotSupported(f"{cascade.name}: {einsum.name} reads {access} ahead along {rank}")
                    ends = 0
                else:  # another variable along the rank: what lies before this one, or all
                    ends = int(not _bounded(einsum, read[0], mine) or ahead > 0)
            if not (other == place and ends == 0):
                found.append((other, ends))
    return found


def _bounded(einsum: ExtendedEinsum, variable: str, time: str) -> bool:
    """Tell whether a variable never runs ahead of the coordinate that an Einsum is at."""
    return any(c.left == variable and c.right == time for c in einsum.conditions)


def _crossing(cascade: Cascade, rank: str, at: list[int], time: list[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for tensor in (*cascade.inputs, *cascade.intermediates):
        if rank not in cascade.ranks_of(tensor):
            continue
        made = [at[p] for p, e in enumerate(cascade.einsums) if e.name == tensor and time[p]]
        reads = sorted(
            {
                at[p]
                for p, e in enumerate(cascade.einsums)
                if time[p]
                for a in e.inputs
                if a.tensor == tensor and (_place(cascade, a, rank) or ("", 0))[0]
            }
        )
        first = max(made) if made else min(reads, default=0)
        later = tuple(p for p in reads if p > first)
        if later:
            found[tensor] = later
    return found


def _whole(cascade: Cascade, rank: str, time: list[str]) -> list[str]:
    """Tensors that are read along another variable beside the one an Einsum is at, and are no running sum."""
    found = list[str]()
    for place, einsum in enumerate(cascade.einsums):
        mine = time[place]
        if not mine or _runs(einsum, mine):
            continue
        for access in einsum.inputs:
            spot = _place(cascade, access, rank)
            if spot and spot[0] and spot[0] != mine:
                found.append(access.tensor)
    return found


def _runs(einsum: ExtendedEinsum, time: str) -> bool:
    """Tell whether an Einsum is a running sum: its output alone follows the coordinate, what it reads runs up to it."""
    read = {v for access in einsum.inputs for v in access.variables}
    return time in einsum.output.variables and bool(einsum.inputs) and time not in read


def _state(cascade: Cascade, rank: str, time: list[str]) -> list[str]:
    found = list[str]()
    for place, einsum in enumerate(cascade.einsums):
        if _runs(einsum, time[place]):
            found.append(einsum.name)
        for access in einsum.inputs:
            read = _place(cascade, access, rank)
            for other in cascade.einsums:
                written = _place(cascade, other.output, rank)
                if other.name != access.tensor or not written or not written[0] or not read:
                    continue
                if time[place] and read[0] == time[place] and read[1] < written[1]:
                    found.append(access.tensor)
    return found


__all__ = ["PassPlan", "plan_passes"]
