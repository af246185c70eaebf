"""What a result answers: descriptions by name and hash, phase, lengths, plan, and what was changed by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from siliconloom.arch.description import Chip
from siliconloom.workloads import Attention, Graph, Vector
from siliconloom.workloads.recurrence import Recurrence
from siliconloom.workloads.roles import Role


def asked(
    graph: Graph,
    overrides: Iterable[tuple[str, str]] = (),
    *,
    machine: str,
    digest: str,
    plan: Mapping[str, Any] | None = None,
    mapping: str | None = None,
) -> dict[str, Any]:
    """Everything that was asked (`arch.result.Asked`).

    Lengths are ``None`` for lists of products, and of requests of unequal lengths, which stand under ``requests``;
    where the layers' attentions differ, the longest. In every phase ``sequence`` are the new tokens of each sequence,
    and ``context`` the keys that the last one attends to: of a chunk behind earlier tokens both together. Of a decoder
    behind an encoder, a decode step's context is that of its own tokens.
    """
    attentions = [o for o in graph.operators() if isinstance(o, Attention) and o.role is not Role.CROSS_ATTENTION]
    runs = [o.run for o in graph.operators() if isinstance(o, Recurrence) and o.state_rows]
    uneven = [asdict(group) for group in graph.requests]
    return {
        "machine": machine,
        "machine_digest": digest,
        "workload": graph.name,
        "workload_digest": workload_digest(graph),
        "phase": graph.phase.value,
        "precision": graph.formats,
        "batch": graph.batch,
        "sequence": None if uneven else max([*(o.q_len for o in attentions), *runs], default=None),
        "context": None if uneven else max((o.kv_len for o in attentions), default=None),
        **({"requests": uneven} if uneven else {}),
        "plan": None if plan is None else dict(plan),
        "mapping": mapping,
        "overrides": dict(overrides),
    }


def digests(chip: Chip, graph: Graph) -> tuple[str, ...]:
    """All of a chip and a workload that a program of the workload, and what it takes, depends on."""
    functions = sorted({o.function for o in graph.operators() if isinstance(o, Vector)})  # registered by whomever
    return chip.digest, workload_digest(graph), "\n".join(each.spec.text for each in functions)


def workload_digest(graph: Graph) -> str:
    """SHA-256 of a workload: every operator with its sizes, and what passes from one to the next.

    A format that is stated is another question than the same one where a chip may choose; so are operators that rest.
    """
    stated = " stated" if graph.explicit_precision else ""
    digest = hashlib.sha256(
        f"{graph.phase.value} {graph.precision.value} {graph.batch} {graph.tokens}{stated}\n".encode()
    )
    for what, operators in (("", graph.operators()), ("resting ", graph.resting)):
        for operator in operators:
            sizes = [(name, str(value)) for name, value in asdict(operator).items()]
            digest.update(f"{what}{operator.kind} {sizes}\n".encode())
    for edge in graph.dataflow.edges():
        digest.update(f"{edge}\n".encode())
    return digest.hexdigest()
