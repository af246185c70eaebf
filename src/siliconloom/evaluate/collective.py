"""``loom collective``: a collective over the links of a system, message by message."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from siliconloom import __version__
from siliconloom.arch import LoomError, NotSupported, load_system
from siliconloom.arch.budget import require_memory
from siliconloom.arch.communication import read_matrix
from siliconloom.arch.document import Document, find_file
from siliconloom.arch.errors import nearest_name, require_name
from siliconloom.arch.gpu import Gpu, load_gpu
from siliconloom.arch.gpu_system import NCCL as MEASURED_TOPOLOGIES
from siliconloom.arch.gpu_system import joined, with_adding_switch
from siliconloom.arch.kinds import is_gpu
from siliconloom.arch.names import LIBRARY, network_names, system_names
from siliconloom.arch.network import Endpoint, Network, Wiring, load_network, wire
from siliconloom.arch.progress import Watch
from siliconloom.arch.quantity import BYTES as BYTE_UNITS
from siliconloom.arch.quantity import parse
from siliconloom.arch.system import System
from siliconloom.arch.timeline import Timeline
from siliconloom.baselines.interpolation import curve
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.evaluate.messages import check_messages, message_timeline
from siliconloom.evaluate.networks import cheapest, check_clock, costing, link_rows, screening
from siliconloom.mapper.network.collectives import OPERATIONS, Size, candidates, lower_bound, pattern
from siliconloom.mapper.network.exchange import exchange_bound
from siliconloom.sim.network.messages import NetworkRun, farthest
from siliconloom.sim.network.patterns import PatternRun, run_pattern

SCHEMA = "siliconloom.collective/1"
LINK_BYTES = 900
"""Memory of a link: in the wiring, in the run, and its row of the result."""
NCCL = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}


def parse_size(text: str) -> Size:
    """Bytes from a number, a quantity such as ``64 MiB``, or a CSV file of what each chip has for each."""
    if text.lower().endswith(".csv"):
        return np.array(read_matrix(Path(text)))
    try:
        found = float(text)
    except ValueError:
        try:
            found = float(parse(text, BYTE_UNITS, "64 MiB"))
        except Exception as error:
            raise LoomError(f"BYTES: {error} (got '{text}')") from None
    if not np.isfinite(found) or found < 0:
        raise LoomError(f"BYTES: must be a number of bytes, not negative (got '{text}')")
    return found


def load_any(name: str, sets: list[tuple[str, str]], chips: int | None) -> tuple[Network | System, int]:
    """A bare network or a system by name or file, and how many of its chips take part."""
    if not name.strip():
        raise LoomError("the name of a system is empty; see loom list")
    networks, systems = network_names(), system_names()
    if not Path(name).exists() and name not in (*networks, *systems):
        near = nearest_name(name, [*networks, *systems])
        hint = f"did you mean '{near}'?" if near else "known: " + ", ".join([*networks, *systems])
        raise LoomError(f"{name}: no such file, and no network or system of that name in the library; {hint}")
    if name in networks or _kind(name) == "network":
        network = load_network(name, sets)
        return network, _count(chips, network.chips, name, free=True)
    if any(path.startswith("chip.") for path, _ in sets):
        raise NotSupported("chip. in a collective: its time is that of links, switches and what NCCL was measured at")
    system = with_adding_switch(load_system(name, sets))
    total = sum(group.count for group in system.chips)
    return system, _count(chips, total, name, free=False)


def collective_result(
    described: Network | System,
    operation: str,
    size: Size,
    chips: int,
    *,
    exact: bool = False,
    flows: bool = False,
    predicted: bool = False,
    watch: Watch = lambda _: None,
    timeline: list[Timeline] | None = None,
) -> dict[str, Any]:
    """Time, bus bandwidth and load of every link under the versioned schema.

    Where there is a ``timeline``, that of the messages is put there.

    Parameters
    ----------
    size
        Bytes, or of an all-to-all a square of them: from each row's chip to each column's. Without a byte to send there
        are no messages, and no time passes, whatever the operation and the model.
    predicted
        Take the model of NCCL also where NCCL was measured on exactly these GPUs.
    watch
        Is handed the times of messages before they are run (`render.watching`).

    Raises
    ------
    LoomError
        For an unknown operation, a disconnected topology, or fewer than two chips.
    """
    began = time.perf_counter()
    require_name("OP", operation, OPERATIONS)
    if isinstance(size, np.ndarray) and operation != "all_to_all":
        raise LoomError(f"BYTES: only all_to_all takes a square of bytes, not {operation}")
    if isinstance(size, np.ndarray) and len(size) != chips:
        raise LoomError(f"BYTES: the square has {len(size)} rows for {chips} chips")
    wiring = wire(described.topology, described.link, chips)
    gpu = None if isinstance(size, np.ndarray) else _gpu_of(described)
    require_memory(f"--chips {chips}", len(wiring.source) * LINK_BYTES, "every link has a row in the result")
    name, ran, tried, messages = _run(described, wiring, operation, size, exact, flows, watch, timeline)
    run = ran.run
    seconds, model = run.finish * 1e-12, "flows, max-min fair" if flows else "messages over links"
    fitted: float | None = None
    known: dict[str, Any] | None = None
    hops = (
        0
        if chips == 1
        else 1
        if operation == "send_receive"
        else farthest(wiring, 1 if operation == "broadcast" else 64)
    )
    if isinstance(size, np.ndarray):
        bound, most = exchange_bound(wiring, size), float(size.sum(axis=1).max())
        moved = float(size.sum() - np.trace(size)) / chips
    else:
        bound, most = lower_bound(operation, wiring, size, in_switch=name == "in_switch", hops=hops), size
        bound = bound if messages else 0.0
        moved = size * {"all_reduce": 2 * (chips - 1) / chips, "broadcast": 1.0, "send_receive": 1.0}.get(
            operation, (chips - 1) / chips
        )
    measured_kind = (
        gpu is not None and not flows and operation in NCCL and described.algorithm == "auto" and messages > 0
    )
    if measured_kind and gpu is not None:
        row = {"op": operation, "gpus": chips, "bytes": max(round(most), 1), "dtype": "fp16"}
        fitted = float(predict(gpu, make_operations([row])).seconds[0])
        seconds, model = fitted, "NCCL, fitted to measurements"
        known = None if predicted else _measured(gpu, operation, chips, float(most))
        if known is not None:
            seconds, model = known.pop("time_s"), f"NCCL, measured: {', '.join(known['sources'])}"
        bound = min(bound, lower_bound(operation, wiring, most, in_switch=True, hops=1))
    if seconds < bound * (1 - 1e-9):
        raise AssertionError(f"{operation} of {most:g} bytes took {seconds:g} s, under its bound of {bound:g} s")
    return {
        "schema": SCHEMA,
        "version": __version__,
        "system": described.name,
        "operation": operation,
        "bytes": most,
        "chips": chips,
        "algorithm": name,
        "model": model,
        "time_s": seconds,
        "predicted_s": fitted,
        "measured": known,
        "algorithm_bandwidth": most / seconds if seconds else 0.0,
        "bus_bandwidth": moved / seconds if seconds else 0.0,
        "lower_bound_s": bound,
        "achieved": bound / seconds if seconds else 1.0,
        "tried": tried,
        "messages": messages,
        "links": link_rows(wiring, run, seconds),
        "simulator": {"wall_s": time.perf_counter() - began, "messages_run": ran.messages},
    }


def _run(
    described: Network | System,
    wiring: Wiring,
    operation: str,
    size: Size,
    exact: bool,
    flows: bool,
    watch: Watch,
    timeline: list[Timeline] | None,
) -> tuple[str, PatternRun, dict[str, float], int]:
    """Algorithm, its run, what each one that was looked at costs, and how many messages it sends."""
    endpoint: Endpoint = described.endpoint
    nothing = size.sum() == np.trace(size) if isinstance(size, np.ndarray) else size == 0
    if wiring.chips == 1 or nothing:
        empty = np.zeros(0, np.int64)
        idle = NetworkRun(empty, np.zeros(len(wiring.source), np.int64), np.zeros(len(wiring.source)))
        if timeline is not None:
            timeline.append(Timeline(f"{operation} on {described.name}: nothing is sent", 1e-12, {}, ()))
        return "none", PatternRun(idle, 0), {}, 0
    names = [described.algorithm] if described.algorithm != "auto" else candidates(operation, wiring)
    costs = costing(wiring, described), screening(wiring, described)
    name, tried = cheapest(operation, names, wiring, size, *costs)
    found = pattern(operation, name, wiring, size)
    check_clock(wiring, found)
    if timeline is not None:
        check_messages(found)
    ran = run_pattern(wiring, found, endpoint, exact=exact, flows=flows, watch=watch)
    if timeline is not None:
        title = f"{operation} on {wiring.chips} chips of {described.name}: {name}, as messages over links"
        timeline.append(message_timeline(title, wiring, found, endpoint, flows=flows, finish=ran.run.finish))
    return name, ran, tried, found.sent


def _gpu_of(described: Network | System) -> Gpu | None:
    if isinstance(described, Network) or not all(is_gpu(group.chip) for group in described.chips):
        return None
    if described.topology.kind not in MEASURED_TOPOLOGIES or described.topology.edges:
        return None
    return joined(described)


def _measured(gpu: Gpu, operation: str, chips: int, size: float) -> dict[str, Any] | None:
    """Time between measured sizes, where NCCL was measured on that many of this GPU with these links in one node."""
    own = load_gpu(gpu.name).link
    same = (gpu.link.bandwidth, gpu.link.switched, gpu.link.in_switch) == (own.bandwidth, own.switched, own.in_switch)
    known = curve(gpu.name, operation, chips) if same and chips <= gpu.link.per_node else None
    seconds = known.at(size) if known is not None else None
    if known is None or seconds is None:
        return None
    above = int(np.searchsorted(known.size, size))
    below = above if known.size[above] == size else above - 1
    return {
        "time_s": seconds,
        "sources": list(known.sources),
        "between": [float(known.size[below]), float(known.size[above])],
        "error": float(np.median(np.abs(known.left_out()))),
        "spread": known.spread,
    }


def _kind(name: str) -> object:
    try:
        return Document.load(find_file(name, LIBRARY / "network", "network")).data.get("kind")
    except LoomError:
        return None


def _count(asked: int | None, there: int, name: str, *, free: bool) -> int:
    if asked is None:
        return there
    if not free and asked > there:
        raise LoomError(f"--chips: {name} has {there} chips (got {asked})")
    return asked
