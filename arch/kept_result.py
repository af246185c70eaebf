"""Results that were kept as JSON, read again and checked against their schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from siliconloom.arch.compared import COMPARE_SCHEMA, Comparison
from siliconloom.arch.errors import LoomError, nearest_name, one_line, shortened
from siliconloom.arch.inputs import read_input, source_name
from siliconloom.arch.planned import PLAN_SCHEMA, PlanResult
from siliconloom.arch.result import SCHEMA, StepResult
from siliconloom.arch.served import SERVING_SCHEMA, ServingResult
from siliconloom.arch.swept import SWEEP_SCHEMA, check_swept

SCHEMAS: dict[str, type[BaseModel]] = {
    SCHEMA: StepResult,
    PLAN_SCHEMA: PlanResult,
    COMPARE_SCHEMA: Comparison,
    SERVING_SCHEMA: ServingResult,
}
"""Models of results by the name of their schema; those of sweeps and a verification's record come with their own."""
WRITERS = "--json of loom sim, compare, serve, plan, sweep and show"
"""What writes results that are read here."""
MOST_BYTES = 64 << 20
"""Bytes that a kept result may have."""


def read_result(path: str | Path) -> dict[str, Any]:
    """A result as plain data, from a file that ``--json`` wrote.

    Raises
    ------
    LoomError
        When it cannot be read, is no result, or contradicts its schema.
    """
    name = source_name(path)
    text = read_input(path, MOST_BYTES, "result")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise LoomError(f"{name}: is no JSON ({one_line(str(error))})") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(schema, str):
        raise LoomError(f"{name}: is no result, it has no 'schema'; {WRITERS} writes one")
    known_names = [*SCHEMAS, SWEEP_SCHEMA]
    if schema not in known_names:
        near = nearest_name(schema, known_names)
        hint = f"; did you mean '{near}'?" if near else ""
        known = ", ".join(known_names)
        raise LoomError(f"{name}: schema: must be one of {known} (got '{shortened(one_line(schema), 60)}'){hint}")
    if schema == SWEEP_SCHEMA:
        try:
            check_swept(found)
        except ValueError as error:
            raise LoomError(f"{name}: {shortened(one_line(str(error)), 200)}") from None
        return dict(found)
    try:
        SCHEMAS[schema].model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LoomError(f"{name}: {shortened(one_line(where), 200)}: {one_line(first['msg'])}") from None
    kept: dict[str, Any] = found
    return kept


__all__ = ["SCHEMAS", "read_result"]
