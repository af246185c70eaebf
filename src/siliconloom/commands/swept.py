"""What ``loom sweep`` and ``loom show`` write of a sweep: files, and tables where nothing else is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from siliconloom.arch.swept import SweepResult


def write_swept(
    found: SweepResult, *, csv: str | None, parquet: str | None, report: str | None, json_file: str | None
) -> None:
    """Write a sweep in every form that is asked."""
    from siliconloom.render.output import write_bytes, write_json, write_text

    if csv is not None:
        from siliconloom.render.sweep_files import sweep_csv

        write_text(csv, sweep_csv(found))
    if parquet is not None:
        from siliconloom.render.sweep_files import sweep_parquet

        write_bytes(parquet, sweep_parquet(found))
    if report is not None:
        from siliconloom.render.sweep_page import sweep_html

        write_text(report, sweep_html(found))
    if json_file is not None:
        write_json(json_file, found.as_dict())
    if "-" not in (csv, parquet, report, json_file):
        from siliconloom.render.sweep import sweep_tables
        from siliconloom.render.tables import console

        sweep_tables(found, console())
