"""Verilator's control file with the lint rules that a design is not held to."""

from __future__ import annotations

from collections.abc import Mapping


def waiver_file(top: str, waivers: Mapping[str, str]) -> str:
    """Text of ``<top>.vlt``: rules of ``verilator --lint-only -Wall``, each with the reason why it is not applied."""
    lines = ["`verilator_config", f"// What {top} is not held to under verilator --lint-only -Wall, and why."]
    for rule, reason in waivers.items():
        lines += [f"// {reason}", f"lint_off -rule {rule}"]
    return "\n".join(lines) + "\n"
