"""What the flows need to know of a design, whatever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from siliconloom.rtl.flows.proofs import Proof
from siliconloom.rtl.flows.registers import RegisterMap
from siliconloom.rtl.library import Circuit


class Design(Struct, frozen=True, kw_only=True):
    """A top circuit and what is said about it in the sidecar and in the files that go with it.

    Parameters
    ----------
    top
        The circuit; its library holds everything below it.
    contains
        What of the described tile it is, in words.
    parameters, timing
        Entries of the sidecar: what it was built with, and its constants in cycles.
    meanings
        One line for every port, by name or by what follows the last underscore.
    registers
        The register map behind its slave port; ``None`` for a design without one.
    beats
        For a design of streams alone: packed beats by channel, what goes in and what must come out.
    ordered
        The same beats in an order in which a single host can send them, as channel and beat.
    bench
        For any other design: the files of a bench of its own, ``bench/tb_<top>.v`` and what that reads.
    proofs
        What its modules promise (`siliconloom.rtl.flows.proofs`).
    files
        Further files by name.
    fallback
        Why there is only the tile's array; empty where everything that is described is there.
    """

    top: Circuit
    contains: str
    parameters: Mapping[str, Any]
    timing: Mapping[str, Any]
    meanings: Mapping[str, str]
    registers: RegisterMap | None = None
    beats: Mapping[str, Sequence[int]] | None = None
    ordered: Sequence[tuple[str, int]] = ()
    bench: Mapping[str, str] = field(default_factory=dict)
    proofs: Sequence[Proof] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    fallback: str = ""
