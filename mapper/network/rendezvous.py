"""Who meets whom in a communication program, in an order that nobody's waiting contradicts; or the deadlock.

The semantics are those of NCCL on streams and of MPI's synchronous mode. A rank does the steps of a stream one after
the other. A send and its receive (same two ranks, same tag, first come first matched) wait for each other, the message
leaves when both are there, and both are done when it has arrived. A collective begins for a member when the member
calls it, and ends for it when all that it must send and receive has arrived; the calls of a group match in each
member's order of calling. `together` starts several operators at once and ends with the last. Since nothing else makes
anybody wait, whether a program gets through does not depend on times, and is decided here before any time is simulated.
"""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom.arch.communication import CALLS_MOST, Communication, ProgramStep, Single, read_matrix
from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.quantity import format_bytes

Key = tuple[int, str]
"""A rank and one of its streams."""
Size = float | tuple[tuple[float, ...], ...]
Groups = dict[str, dict[int, tuple[str, tuple[int, ...]]]]
"""By name, for every rank that belongs to one: what the rank's group is called in full, and its members."""
SHOWN = 4


class Call(Struct, frozen=True, eq=False):
    """One operator as one rank calls it.

    ``group`` are a collective's ranks, ``where`` names them, ``path`` is the place in the file. ``position`` is the
    step's number on the stream; those of one `together` share it.
    """

    kind: str
    rank: int
    stream: str
    position: int
    path: tuple[str | int, ...]
    bytes: Size = 0.0
    peer: int = -1
    tag: int = 0
    where: str = ""
    group: tuple[int, ...] = ()
    algorithm: str = ""
    root: int = -1
    time: int = 0

    @property
    def key(self) -> Key:
        return self.rank, self.stream

    @property
    def told(self) -> tuple[object, ...]:
        """What all members of a collective must agree on."""
        return self.kind, self.bytes, self.algorithm, self.root


class Meeting(Struct, frozen=True):
    """An operator that all who take part have called: the sender and the receiver, or the members in group order."""

    calls: tuple[Call, ...]

    @property
    def kind(self) -> str:
        return self.calls[0].kind


class _Stream(Struct):
    steps: list[tuple[Call, ...]]
    at: int = 0
    open: set[Call] = field(default_factory=set)


def read_calls(program: Communication, document: Document, ranks: int) -> dict[Key, list[tuple[Call, ...]]]:
    """Steps of every stream of every rank, ranks and groups resolved.

    Raises
    ------
    LoomError
        For ranks that are not there, unknown groups, members that call a group they do not belong to.
    """
    groups = _groups(program, document, ranks)
    found: dict[Key, list[tuple[Call, ...]]] = {}
    total = 0
    for at, entry in enumerate(program.program):
        who = range(ranks) if entry.ranks is None else entry.ranks
        if max(who) >= ranks:
            raise document.error(f"names rank {max(who)}; there are ranks 0 to {ranks - 1}", ("program", at, "ranks"))
        total += len(who) * entry.repeat * sum(len(s.together or (s,)) for s in entry.do)
        if total > CALLS_MOST:
            raise document.error(f"the program has more than {CALLS_MOST:,} calls", ("program", at))
        for rank in who:
            steps = found.setdefault((rank, entry.stream), [])
            base = {"rank": rank, "stream": entry.stream, "position": 0}
            once = [
                [_call(p, document, ranks, groups, {**base, "path": w}) for p, w in _parts(step, at, number)]
                for number, step in enumerate(entry.do)
            ]
            for _ in range(entry.repeat):
                for parts in once:
                    steps.append(tuple(replace(call, position=len(steps)) for call in parts))
    return found


def _parts(step: ProgramStep, entry: int, number: int) -> list[tuple[Single, tuple[str | int, ...]]]:
    path = ("program", entry, "do", number)
    if step.together is None:
        return [(step, path)]
    return [(part, (*path, "together", i)) for i, part in enumerate(step.together)]


def match(calls: dict[Key, list[tuple[Call, ...]]], document: Document) -> list[Meeting]:
    """All operators in an order in which they can happen.

    Raises
    ------
    LoomError
        For a deadlock: ranks that disagree on a collective, that wait for each other, or for one that never comes.
    """
    streams = {key: _Stream(steps) for key, steps in calls.items()}
    meetings: list[Meeting] = []
    mail: dict[tuple[str, int, int, int], deque[Call]] = defaultdict(deque)
    turns: dict[tuple[str, int], int] = defaultdict(int)  # how often a rank has called a group
    rooms: dict[tuple[str, tuple[int, ...], int], dict[int, Call]] = defaultdict(dict)
    owner: dict[tuple[str, int], Call] = {}
    queue = deque(sorted(streams))

    def close(*met: Call) -> None:
        meetings.append(Meeting(met))
        for call in met:
            stream = streams[call.key]
            stream.open.discard(call)
            if not stream.open:
                stream.at += 1
                queue.append(call.key)

    def post(call: Call) -> None:
        if call.kind == "compute":
            close(call)
        elif call.kind in ("send", "receive"):
            source, target = (call.rank, call.peer) if call.kind == "send" else (call.peer, call.rank)
            other = mail["receive" if call.kind == "send" else "send", source, target, call.tag]
            if not other:
                mail[call.kind, source, target, call.tag].append(call)
                return
            pair = (call, other.popleft()) if call.kind == "send" else (other.popleft(), call)
            if pair[1].bytes not in (-1.0, pair[0].bytes):
                raise _error(
                    document,
                    pair[1],
                    f"{_name(pair[1], document)} expects {_shown(pair[1].bytes)}, but "
                    f"{_name(pair[0], document)} sends {_shown(pair[0].bytes)}",
                )
            close(*pair)
        else:
            first = owner.setdefault((call.where, call.rank), call)
            if first.stream != call.stream:
                raise _error(
                    document,
                    call,
                    f"rank {call.rank} calls group '{call.where}' from two streams, "
                    f"'{first.stream}' and '{call.stream}': the order would be open",
                )
            turn = turns[call.where, call.rank]
            turns[call.where, call.rank] = turn + 1
            room = rooms[call.where, call.group, turn]
            room[call.rank] = call
            one = next(iter(room.values()))
            if one.told != call.told:
                raise _error(
                    document,
                    call,
                    f"deadlock: ranks disagree on call {turn + 1} of group '{call.where}': "
                    f"{_told(one, document)}, {_told(call, document)}",
                )
            if len(room) == len(call.group):
                close(*(room[rank] for rank in call.group))
                del rooms[call.where, call.group, turn]

    while queue:
        key = queue.popleft()
        stream = streams[key]
        if stream.open or stream.at == len(stream.steps):
            continue
        step = stream.steps[stream.at]
        stream.open = set(step)
        for call in step:
            post(call)
    stuck = {key: s for key, s in streams.items() if s.at < len(s.steps)}
    if stuck:
        raise _deadlock(stuck, streams, rooms, document)
    return meetings


def _groups(program: Communication, document: Document, ranks: int) -> Groups:
    everyone = tuple(range(ranks))
    found: Groups = {"all": dict.fromkeys(everyone, ("all", everyone))}
    for name in [*program.groups, *program.splits]:
        if name == "all" or (name in program.groups and name in program.splits):
            kind = "splits" if name in program.splits else "groups"
            raise document.error("a group of that name is there already", (kind, name))
    for name, given in program.groups.items():
        members = everyone if given is None else given
        if max(members) >= ranks:
            rule = f"names rank {max(members)}; there are ranks 0 to {ranks - 1}"
            raise document.error(rule, ("groups", name))
        found[name] = dict.fromkeys(members, (name, members))
    for name, split in program.splits.items():
        block = split.size * split.stride
        if ranks % block:
            rule = f"groups of {split.size}, {split.stride} apart, do not fill {ranks} ranks"
            raise document.error(rule, ("splits", name))
        found[name] = {}
        for number, first in enumerate(b + offset for b in range(0, ranks, block) for offset in range(split.stride)):
            members = tuple(range(first, first + block, split.stride))
            found[name].update(dict.fromkeys(members, (f"{name}[{number}]", members)))
    return found


def _call(step: Single, document: Document, ranks: int, groups: Groups, base: dict[str, Any]) -> Call:
    kind = next(iter(step.model_fields_set))
    given, rank, path = step.chosen, base["rank"], base["path"]
    if kind == "compute":
        return Call(kind, time=given.time, **base)
    if kind in ("send", "receive"):
        key = "to" if kind == "send" else "from"
        relative, number = given.to if kind == "send" else given.source
        peer = (rank + number) % ranks if relative else number
        if peer >= ranks or peer == rank:
            rule = f"rank {rank} cannot {kind} {key} rank {peer}" + (
                " itself" if peer == rank else f"; there are ranks 0 to {ranks - 1}"
            )
            raise document.error(rule, (*path, kind, key))
        return Call(kind, bytes=-1.0 if given.bytes is None else given.bytes, peer=peer, tag=given.tag, **base)
    if given.group not in groups:
        raise document.error(
            f"must be a group: {', '.join(groups)}",
            (*path, kind, "group"),
            value=given.group,
            nearest=nearest_name(given.group, groups),
        )
    if rank not in groups[given.group]:
        raise document.error(f"rank {rank} is no member of the group", (*path, kind, "group"), value=given.group)
    where, members = groups[given.group][rank]
    size, root = getattr(given, "bytes", 0.0), getattr(given, "root", None)
    if isinstance(size, str):
        folder = Path(document.source).parent
        size = read_matrix(Path(size) if Path(size).is_absolute() else folder / size)
    if isinstance(size, tuple) and len(size) != len(members):
        rule = f"must have a row for each of the {len(members)} members (got {len(size)})"
        raise document.error(rule, (*path, kind, "bytes"))
    if root is not None and root not in members:
        raise document.error("must be a member of the group", (*path, kind, "root"), value=root)
    return Call(
        kind,
        bytes=size,
        where=where,
        group=members,
        algorithm=getattr(given, "algorithm", "auto"),
        root=members[0] if root is None else root,
        **base,
    )


def _deadlock(
    stuck: dict[Key, _Stream], streams: dict[Key, _Stream], rooms: dict[Any, dict[int, Call]], document: Document
) -> LoomError:
    """The chain of who waits for whom, from the lowest rank, until it closes or comes to one who never calls."""
    parts: list[str] = []
    at, seen = min(stuck), set[Key]()
    first = min(stuck[at].open, key=lambda c: c.path)
    while at in stuck and at not in seen and len(parts) < 2 * SHOWN:
        seen.add(at)
        call = min(stuck[at].open, key=lambda c: c.path)
        if call.kind in ("send", "receive"):
            missing = [call.peer]
        else:
            room = next(r for (where, _, _), r in rooms.items() if where == call.where and call in r.values())
            missing = [rank for rank in call.group if rank not in room]
        shown = ", ".join(map(str, missing[:SHOWN])) + (
            f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        )
        parts.append(f"{_name(call, document)} waits for rank{'s' * (len(missing) > 1)} {shown}")
        others = [key for key in stuck if key[0] == missing[0]]
        if not others:
            ended = any(key[0] == missing[0] for key in streams)
            parts.append(f"rank {missing[0]} {'has done all its steps' if ended else 'has no steps'}")
            break
        at = others[0]
    return _error(document, first, f"deadlock: {len(stuck)} of {len(streams)} streams never end: {'; '.join(parts)}")


def _name(call: Call, document: Document) -> str:
    stream = "" if call.stream == "main" else f" (stream {call.stream})"
    place = document.position((*call.path, call.kind))
    what = {"send": f"send to {call.peer}", "receive": f"receive from {call.peer}"}.get(
        call.kind, f"{call.kind} of group '{call.where}'"
    )
    return f"rank {call.rank}{stream} in {what} at line {place.line or place}"


def _told(call: Call, document: Document) -> str:
    size = "" if call.kind == "barrier" else f" of {_shown(call.bytes)} by {call.algorithm}"
    root = f" from {call.root}" if call.kind == "broadcast" else ""
    place = document.position((*call.path, call.kind))
    return f"rank {call.rank} calls {call.kind}{size}{root} at line {place.line or place}"


def _shown(size: Size) -> str:
    return (
        f"{size:,.0f} B"
        if isinstance(size, float) and size < 1024
        else ("a matrix of bytes" if isinstance(size, tuple) else format_bytes(size))
    )


def _error(document: Document, call: Call, rule: str) -> LoomError:
    error: LoomError = document.error(rule, (*call.path, call.kind))
    return error
