"""Chakra execution traces in files: length-prefixed protobuf messages, a file ``NAME.{rank}.et`` for each rank.

The first message of a file is its metadata, every other one a node. Messages, fields and their numbers are those of
MLCommons Chakra's ``et_def.proto`` (version 0.0.4), names of attributes those that Chakra's feeder and ASTRA-sim read.
Communicator groups stand in ``NAME.json``, ranks by a number for each group, as ASTRA-sim takes them.
``duration_picos`` is an attribute of ours: the schema's own durations are whole microseconds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from siliconloom import __version__
from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.budget import require_memory
from siliconloom.arch.execution_trace import (
    NODE_BYTES,
    NODES_MOST,
    SUFFIX,
    CollectiveKind,
    ExecutionTrace,
    NodeKind,
    TraceNode,
)
from siliconloom.arch.inputs import read_bytes, read_input
from siliconloom.models.gguf import missing

VERSION = "0.0.4"
"""Of the schema, in the metadata of files that are written."""
MOST_BYTES = 2**30
GROUPS_BYTES = 2**26
SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
"""Types of an attribute's value, in the schema's order; each also comes as a list."""
KNOWN = {
    "INVALID_NODE": 0,
    "STORAGE_NODE": 8,
    "BATCH_NODE": 9,
    "CHECKPOINT_NODE": 10,
    "REDUCE": 1,
    "GATHER": 3,
    "SCATTER": 4,
    "REDUCE_SCATTER_BLOCK": 8,
}
"""What else the schema has: kinds of nodes and of collectives, by their numbers."""
MICRO = 10**6
"""Picoseconds of a microsecond."""
RANK = re.compile(r"^(?P<name>.+)\.(?P<rank>\d+)\.et$")
LONGEST = 2**62
"""Picoseconds, and bytes, that a node may have."""


def is_execution_trace(name: str) -> bool:
    """Whether a path names an execution trace: ``NAME.et``, ``NAME.{rank}.et``."""
    return name.endswith(SUFFIX)


def base_name(path: str) -> str:
    """``NAME`` of the path ``NAME.et``, ``NAME.3.et`` or ``NAME.{rank}.et``."""
    found = RANK.match(path)
    return found["name"] if found else path.removesuffix(SUFFIX).removesuffix(".{rank}")


def is_rank_of(file: str, path: str) -> bool:
    """Whether ``file`` is called as a rank's file of the trace ``path``."""
    found = RANK.match(os.path.realpath(file))
    return found is not None and found["name"] == os.path.realpath(base_name(path))


def trace_files(path: str, ranks: int) -> list[str]:
    """Files of a trace of so many ranks: the last one has the groups."""
    base = base_name(path)
    return [*(f"{base}.{rank}{SUFFIX}" for rank in range(ranks)), f"{base}.json"]


def read_trace(path: str, groups: str | None = None) -> ExecutionTrace:
    """Every rank's nodes, from one file of the trace or ``NAME.et``.

    Parameters
    ----------
    groups
        File of the communicator groups; ``NAME.json`` where it is there and no other is named.

    Raises
    ------
    LoomError
        For files that are damaged or are not there, and for nodes that contradict themselves or each other.
    NotSupported
        For nodes of kinds that no simulation here has.
    """
    base = base_name(path)
    folder = Path(base).parent
    found: dict[int, Path] = {}
    if folder.is_dir():
        for each in folder.iterdir():
            match = RANK.match(str(each.parent / each.name))
            if match and Path(match["name"]) == Path(base):
                found[int(match["rank"])] = each
    if not found:
        raise LoomError(f"{path}: no such file; an execution trace has a file {base}.0{SUFFIX} and one for each rank")
    gone = sorted(set(range(max(found) + 1)) - set(found))
    if gone:
        raise LoomError(f"{base}.{gone[0]}{SUFFIX}: no such file; the trace has ranks up to {max(found)}")
    named = {}
    if groups is not None or Path(f"{base}.json").is_file():
        named = _read_groups(groups or f"{base}.json", len(found))
    ranks, total = [], 0
    for rank in range(len(found)):
        nodes = _read_rank(str(found[rank]), rank, len(found), named)
        total += len(nodes)
        if total > NODES_MOST:
            raise LoomError(f"{base}: more than {NODES_MOST:,} nodes")
        ranks.append(nodes)
    require_memory(f"{base}: {total:,} nodes", total * NODE_BYTES, "a shorter trace needs less")
    return ExecutionTrace(Path(base).name, tuple(ranks), named)


def trace_bytes(trace: ExecutionTrace) -> list[bytes]:
    """Contents of a trace's files, in the order of `trace_files`."""
    made = [_rank_bytes(rank, nodes) for rank, nodes in enumerate(trace.ranks)]
    groups = {name: list(ranks) for name, ranks in trace.groups.items()}
    return [*made, (json.dumps(groups) + "\n").encode()]


@cache
def _schema() -> Any:
    """Classes of the schema's messages by their names."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ModuleNotFoundError:
        raise missing("protobuf", "execution traces", "chakra") from None
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="siliconloom/et_def.proto", package="siliconloom.chakra")
    file.syntax = "proto3"

    def message(name: str, *fields: tuple[int, str, str, bool]) -> Any:
        made = file.message_type.add(name=name)
        for number, field, kind, many in fields:
            label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
            one = made.field.add(name=field, number=number, label=label)
            if kind in SCALARS:
                one.type = getattr(kinds, f"TYPE_{kind.upper()}")
            else:
                one.type, one.type_name = kinds.TYPE_MESSAGE, f".siliconloom.chakra.{kind}"
        return made

    for kind in SCALARS:
        message(f"{kind.capitalize()}List", (1, "values", kind, True))
    values = [
        value
        for place, kind in enumerate(SCALARS)
        for value in (
            (3 + 2 * place, f"{kind}_val", kind, False),
            (4 + 2 * place, f"{kind}_list", f"{kind.capitalize()}List", False),
        )
    ]
    attribute = message("AttributeProto", (1, "name", "string", False), (2, "doc_string", "string", False), *values)
    attribute.oneof_decl.add(name="value")
    for field in attribute.field[2:]:
        field.oneof_index = 0
    message("GlobalMetadata", (1, "version", "string", False), (2, "attr", "AttributeProto", True))
    node = (
        (1, "id", "uint64", False),
        (2, "name", "string", False),
        (3, "type", "int32", False),
        (4, "ctrl_deps", "uint64", True),
        (5, "data_deps", "uint64", True),
        (6, "start_time_micros", "uint64", False),
        (7, "duration_micros", "uint64", False),
        (10, "attr", "AttributeProto", True),
    )
    message("Node", *node)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("AttributeProto", "GlobalMetadata", "Node")
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{n}")) for n in names}


def _messages(file: str) -> Iterator[bytes]:
    """Every length-prefixed message of a file."""
    raw = read_bytes(file, MOST_BYTES, "execution trace")
    if not raw:
        raise LoomError(f"{file}: the file is empty")
    at = 0
    while at < len(raw):
        began, size, shift = at, 0, 0
        while True:
            if at == len(raw) or shift > 28:
                raise LoomError(f"{file}: damaged: no length of a message at byte {began}")
            size |= (raw[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not raw[at - 1] & 0x80:
                break
        if at + size > len(raw):
            left = len(raw) - at
            raise LoomError(f"{file}: damaged: a message at byte {began} has {size:,} bytes, and {left:,} are left")
        yield raw[at : at + size]
        at += size


def _parsed(file: str, kind: str, raw: bytes, what: str) -> Any:
    from google.protobuf.message import DecodeError

    found = _schema()[kind]()
    try:
        found.ParseFromString(raw)
    except (DecodeError, UnicodeDecodeError):
        raise LoomError(f"{file}: damaged: {what} is no {kind} of a Chakra execution trace") from None
    return found


def _read_rank(file: str, rank: int, ranks: int, groups: dict[str, tuple[int, ...]]) -> tuple[TraceNode, ...]:
    _schema()
    nodes: dict[int, TraceNode] = {}
    for number, raw in enumerate(_messages(file)):
        if number == 0:
            _parsed(file, "GlobalMetadata", raw, "the first message")
            continue
        if number > NODES_MOST:
            raise LoomError(f"{file}: more than {NODES_MOST:,} nodes")
        read = _parsed(file, "Node", raw, f"message {number + 1}")
        node = _node(f"{file}: node {read.id}" + (f" ('{read.name}')" if read.name else ""), read, rank, ranks, groups)
        if node.id in nodes:
            raise LoomError(f"{file}: node {node.id} is there twice: '{nodes[node.id].name}' and '{node.name}'")
        nodes[node.id] = node
    for node in nodes.values():
        unknown = [each for each in node.waits if each not in nodes]
        if unknown:
            raise LoomError(f"{file}: node {node.id} ('{node.name}') waits for node {unknown[0]}, which is not there")
    return tuple(nodes[each] for each in sorted(nodes))


def _node(where: str, read: Any, rank: int, ranks: int, groups: dict[str, tuple[int, ...]]) -> TraceNode:
    """A node of the schema as ours; ``where`` begins every error."""
    given: dict[str, Any] = {}
    for attribute in read.attr:
        value = attribute.WhichOneof("value")
        if value is not None:
            given[attribute.name] = getattr(attribute, value)
    kind = _kind(where, read.type)

    def whole(name: str, most: int = LONGEST) -> int:
        value = given.get(name, 0)
        if (
            isinstance(value, str)
            or not isinstance(value, int | float)
            or not 0 <= value <= most
            or value != int(value)
        ):
            raise LoomError(f"{where}: {name} must be a whole number from 0 to {most} (got {str(value)[:40]})")
        return int(value)

    base = {"id": read.id, "name": read.name, "kind": kind, "on_host": bool(given.get("is_cpu_op", False))}
    base["waits"] = tuple(dict.fromkeys([*read.ctrl_deps, *read.data_deps]))
    if kind is NodeKind.METADATA:
        return TraceNode(**base)
    if kind is NodeKind.COMPUTE:
        duration = _duration(
            where, read.duration_micros, whole("duration_picos") if "duration_picos" in given else None
        )
        return TraceNode(**base, duration=duration, operations=whole("num_ops"), tensor=whole("tensor_size"))
    if "comm_size" not in given and given.get("comm_type") != CollectiveKind.BARRIER:
        raise LoomError(f"{where}: comm_size is missing")
    size = whole("comm_size")
    if kind is NodeKind.COLLECTIVE:
        group = str(given.get("pg_name", ""))
        group = "" if group == "0" and "0" not in groups else group
        if group and group not in groups:
            known = ", ".join(groups) or "none are named; NAME.json beside NAME.0.et, or --groups FILE, has them"
            raise LoomError(f"{where}: pg_name must be a group (got '{group}'): {known}")
        if group and rank not in groups[group]:
            raise LoomError(f"{where}: rank {rank} is no member of group {group}")
        involved = given.get("involved_dim")
        if involved is not None and not all(getattr(involved, "values", [True])):
            raise NotSupported(f"{where}: involved_dim that leaves a dimension out; pg_name names a group")
        return TraceNode(**base, size=size, group=group, collective=_collective(where, given))
    key, own = ("comm_dst", "comm_src") if kind is NodeKind.SEND else ("comm_src", "comm_dst")
    if key not in given:
        raise LoomError(f"{where}: {key} is missing")
    if own in given and whole(own) != rank:
        raise LoomError(f"{where}: {own} must be the rank whose file it is in, {rank} (got {whole(own)})")
    peer = whole(key)
    if peer >= ranks or peer == rank:
        raise LoomError(f"{where}: {key} must be another rank from 0 to {ranks - 1} (got {peer})")
    return TraceNode(**base, size=size, peer=peer, tag=whole("comm_tag"))


def _kind(where: str, number: int) -> NodeKind:
    try:
        found = NodeKind(number)
    except ValueError:
        named = [name for name, n in KNOWN.items() if n == number and name.endswith("_NODE")]
        known = ", ".join(f"{each.value} {each.name}" for each in NodeKind)
        raise LoomError(f"{where}: type must be one of {known} (got {' '.join([str(number), *named])})") from None
    if found in (NodeKind.MEMORY_LOAD, NodeKind.MEMORY_STORE):
        raise NotSupported(
            f"{where}: {found.name} of an execution trace: no system here has memory apart from its chips"
        )
    return found


def _collective(where: str, given: dict[str, Any]) -> CollectiveKind:
    number = given.get("comm_type")
    if number is None:
        raise LoomError(f"{where}: comm_type is missing")
    try:
        return CollectiveKind(number)
    except ValueError:
        named = [name for name, n in KNOWN.items() if n == number and not name.endswith("_NODE")]
        text = f"{where}: comm_type {' '.join([str(number), *named])}"
        known = ", ".join(f"{each.value} {each.name}" for each in CollectiveKind)
        if named:
            raise NotSupported(f"{text}; there are {known}") from None
        raise LoomError(f"{text}: must be one of {known}") from None


def _duration(where: str, micros: int, picos: int | None) -> int | None:
    """Picoseconds of a node, by the finer of what it says."""
    if micros > LONGEST // MICRO:
        raise LoomError(f"{where}: duration_micros must be at most {LONGEST // MICRO} (got {micros})")
    if picos is None:
        return micros * MICRO or None
    if abs(picos - micros * MICRO) > MICRO:
        raise LoomError(f"{where}: duration_picos {picos} contradicts duration_micros {micros}")
    return picos


def _read_groups(file: str, ranks: int) -> dict[str, tuple[int, ...]]:
    try:
        read = json.loads(read_input(file, GROUPS_BYTES, "file of groups"))
    except (ValueError, RecursionError) as error:
        raise LoomError(f"{file}: is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise LoomError(f'{file}: must have ranks by the name of their group, such as {{"1": [0, 1]}}')
    found = {}
    for name, members in read.items():
        fits = isinstance(members, list) and all(type(m) is int and 0 <= m < ranks for m in members)
        if not fits or not members or len(set(members)) < len(members):
            raise LoomError(f"{file}: group {name}: must be ranks from 0 to {ranks - 1}, each once")
        found[name] = tuple(members)
    return found


def _rank_bytes(rank: int, nodes: Sequence[TraceNode]) -> bytes:
    schema = _schema()
    made = [schema["GlobalMetadata"](version=VERSION, attr=[_attribute("written_by", f"siliconloom {__version__}")])]
    told = passed = 0
    for node in nodes:
        one = schema["Node"](id=node.id, name=node.name, type=int(node.kind), data_deps=node.waits)
        attributes: dict[str, bool | int | str] = {"is_cpu_op": node.on_host}
        if node.kind is NodeKind.COMPUTE:
            attributes |= {"num_ops": node.operations, "tensor_size": node.tensor}
            if node.duration is not None:
                passed += node.duration  # rounded so that sums of many are right to a microsecond
                one.duration_micros = max(round(passed / MICRO) - told, 0)
                told += one.duration_micros
                attributes["duration_picos"] = node.duration
        elif node.collective is not None:
            attributes |= {"comm_type": int(node.collective), "comm_size": node.size}
            attributes |= {"pg_name": node.group} if node.group else {}
        elif node.kind in (NodeKind.SEND, NodeKind.RECEIVE):
            ends = (rank, node.peer) if node.kind is NodeKind.SEND else (node.peer, rank)
            attributes |= {"comm_src": ends[0], "comm_dst": ends[1], "comm_size": node.size, "comm_tag": node.tag}
        one.attr.extend(_attribute(name, value) for name, value in attributes.items())
        made.append(one)
    return b"".join(_prefixed(each.SerializeToString(deterministic=True)) for each in made)


def _attribute(name: str, value: bool | int | str) -> Any:
    kind = {bool: "bool_val", int: "int64_val", str: "string_val"}[type(value)]
    return _schema()["AttributeProto"](name=name, **{kind: value})


def _prefixed(raw: bytes) -> bytes:
    size, head = len(raw), bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(head) + bytes([size]) + raw


__all__ = ["base_name", "is_execution_trace", "read_trace", "trace_bytes", "trace_files"]
