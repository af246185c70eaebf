"""The rules of handshakes, AXI4 and AXI4-Lite as Verilog modules: one list for every bench, ours and the emitted ones.

A bench puts an instance at each port and fails when one says ``broken`` or prints a line that begins with ERROR.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import StrictUndefined, Template

TEMPLATE = Path(__file__).parent / "rules.v.j2"
PATIENCE = 64
"""Cycles within which an AXI4-Lite slave answers."""


def protocol_rules(prefix: str, *, axi: bool = True) -> str:
    """The modules ``<prefix>_handshake_rules`` and, with ``axi``, those of AXI4 reads, AXI4 writes and AXI4-Lite.

    Their names end in ``_axi4_read_rules``, ``_axi4_write_rules`` and ``_axi_lite_rules``.
    """
    template = Template(TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, undefined=StrictUndefined)
    text: str = template.render(prefix=prefix, axi=axi, patience=PATIENCE)
    return text.rstrip("\n") + "\n"
