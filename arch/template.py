"""A description with every key that it may have, each with its meaning: `loom new`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from siliconloom.arch.schema_keys import (
    example_of,
    is_mapping,
    is_sequence,
    key_of,
    meaning,
    model_for,
    models_of,
    takes_a_name,
)

WIDTH = 100
"""Columns of a comment."""


def commented(model: type[BaseModel], data: Mapping[str, Any], heading: str) -> str:
    """A description as YAML: the keys of ``data`` as they are, all others as comments with their defaults.

    Parameters
    ----------
    model
        What is described.
    data
        A description of it, as it is written.
    heading
        A comment at the beginning.
    """
    lines = [f"# {line}" for line in textwrap.wrap(heading, WIDTH)]
    return "\n".join([*lines, "", *_section(model, data, 0, on=True)]) + "\n"


def _section(model: type[BaseModel], data: Mapping[str, Any], depth: int, *, on: bool) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = key_of(name, field)
        given = on and key in data and data[key] is not None
        yield from _entry(key, field, data.get(key) if given else None, depth, on=given)


def _entry(key: str, field: FieldInfo, value: Any, depth: int, *, on: bool) -> Iterator[str]:
    """The lines of a key: its meaning, then its value, or its default as a comment."""
    indent, mark = "  " * depth, "" if on else "# "
    room = max(WIDTH - len(indent), 40)
    for line in textwrap.wrap(meaning(field), room):
        yield f"{indent}## {line}"
    models = models_of(field.annotation)
    if is_mapping(field.annotation) and models:
        yield f"{indent}{mark}{key}:"
        for entry, inner in (value or {"NAME": {}}).items():
            yield f"{indent}  {mark}{entry}:"
            yield from _section(models[0], inner, depth + 2, on=on)
        return
    chosen = None if is_sequence(field.annotation) or not models else model_for(models, value)
    if chosen is not None and (isinstance(value, Mapping) or not on) and not takes_a_name(field):
        yield f"{indent}{mark}{key}:"
        yield from _section(chosen, value or {}, depth + 1, on=on)
        return
    if on:
        yield f"{indent}{key}: {_flow(value)}"
    else:
        default = example_of(field) if field.default is PydanticUndefined else field.default
        yield f"{indent}# {key}: {_flow(_plain(default))}"


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="json"))
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return getattr(value, "value", value)


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


__all__ = ["commented"]
