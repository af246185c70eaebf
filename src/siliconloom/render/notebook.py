"""Results as they stand in a notebook: the tables of the terminal, as text and as HTML."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from siliconloom.render.tables import Screen

WIDTH = 110
"""Columns of a page in a notebook."""
PRE = '<pre style="font-family:monospace;line-height:1.25;white-space:pre;overflow-x:auto">{code}</pre>'


def result_text(result: dict[str, Any], source: object = None) -> str:
    """The tables that the command of a result prints."""
    page = _page(result, source)
    return page.export_text()


def result_html(result: dict[str, Any], source: object = None) -> str:
    """The same as HTML that takes the colours of its page."""
    page = _page(result, source)
    return page.export_html(inline_styles=True, code_format=PRE)


def _page(result: dict[str, Any], source: object) -> Console:
    page = Screen(width=WIDTH)
    page.file, page.record = io.StringIO(), True
    _tables(result, source)(page)
    return page


def _tables(result: dict[str, Any], source: object) -> Callable[[Console], None]:
    """What prints a result, by its schema."""
    kind = str(result.get("schema", "")).partition("/")[0]
    if kind == "siliconloom.result":
        from siliconloom.render.step import step_tables

        return lambda out: step_tables(result, out)
    if kind == "siliconloom.plan":
        from siliconloom.render.plan import plan_tables

        return lambda out: plan_tables(result, out)
    if kind == "siliconloom.serving":
        from siliconloom.render.serving import serving_tables

        return lambda out: serving_tables(result, out)
    if kind == "siliconloom.compare":
        from siliconloom.render.compare import compare_tables

        return lambda out: compare_tables(result, out)
    if kind == "siliconloom.sweep":
        from siliconloom.arch.swept import SweepResult
        from siliconloom.render.sweep import sweep_tables

        assert isinstance(source, SweepResult)
        return lambda out: sweep_tables(source, out)
    if kind == "siliconloom.verification":
        from siliconloom.arch.verified import Verified
        from siliconloom.render.verification import verification_table

        assert isinstance(source, Verified)
        return lambda out: verification_table(source, out)
    return lambda out: _sidecar(result, out)


def _sidecar(result: dict[str, Any], out: Console) -> None:
    """What was generated of a chip."""
    out.print(f"{result['chip']}: {result['contains']}")
    out.print(f"  {len(result['verilog'])} modules, {len(result['ports'])} ports of the top module {result['top']}")


__all__ = ["result_html", "result_text"]
