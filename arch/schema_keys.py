"""Keys of a kind of description, as its model has them: where each is, what it may be, and what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def parts_of(annotation: Any) -> Iterator[Any]:
    """Every type that an annotation names, from its outside in."""
    yield annotation
    for each in get_args(annotation):
        yield from parts_of(each)


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """Descriptions that a key may hold."""
    found = [each for each in parts_of(annotation) if isinstance(each, type) and issubclass(each, BaseModel)]
    return list(dict.fromkeys(found))


def is_mapping(annotation: Any) -> bool:
    """Whether a key holds descriptions by names."""
    return any(get_origin(each) is dict for each in parts_of(annotation))


def is_sequence(annotation: Any) -> bool:
    """Whether a key holds a list."""
    return any(get_origin(each) in (tuple, list) for each in parts_of(annotation))


def model_for(models: list[type[BaseModel]], data: object) -> type[BaseModel] | None:
    """The one of several descriptions that data is of, by its kind; the only one where there is one."""
    if len(models) == 1:
        return models[0]
    kind = data.get("kind") if isinstance(data, Mapping) else None
    for each in models:
        field = each.model_fields.get("kind")
        if field is not None and kind in get_args(field.annotation):
            return each
    return None


def takes_a_name(field: FieldInfo) -> bool:
    """Whether a key may hold the name of a description in its place, whose file then has the keys."""
    return bool(models_of(field.annotation)) and any(isinstance(each, BeforeValidator) for each in _all_metadata(field))


def key_of(name: str, field: FieldInfo) -> str:
    """The key of a field in a file."""
    return field.alias or name


def key_paths(model: type[BaseModel], data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths of all keys that a description of a model may have; entries by names are those of ``data``."""
    for name, field in model.model_fields.items():
        key = key_of(name, field)
        path, inner = f"{prefix}{key}", data.get(key)
        models = models_of(field.annotation)
        if not models or is_sequence(field.annotation) or takes_a_name(field):
            yield path
        elif is_mapping(field.annotation):
            for entry, value in inner.items() if isinstance(inner, Mapping) else ():
                yield from key_paths(models[0], value, f"{path}.{entry}.")
        elif (chosen := model_for(models, inner)) is not None:
            yield from key_paths(chosen, inner if isinstance(inner, Mapping) else {}, f"{path}.")


def meaning(field: FieldInfo) -> str:
    """What a key is, with its unit, its range, the words that it may be, and its default, as one line."""
    values = [v for each in parts_of(field.annotation) for v in _choices(each)]
    said = [field.description] if field.description else []
    example, bounds = _quantity(field), _bounds(field)
    if example:
        said.append(f"a quantity such as {example}")
    if len(values) > 1:
        said.append(f"one of {', '.join(map(str, dict.fromkeys(values)))}")
    if bounds:
        said.append(bounds)
    if field.default is PydanticUndefined and field.default_factory is None:
        said.append("required")
    return "; ".join(said)


def example_of(field: FieldInfo) -> Any:
    """A value that a key may have: its only word, or a quantity with its unit; nothing where neither is known."""
    values = [v for each in parts_of(field.annotation) for v in _choices(each)]
    return values[0] if len(values) == 1 else _quantity(field)


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [each.value for each in annotation]
    return ["true", "false"] if annotation is bool else []


def _all_metadata(field: FieldInfo) -> Iterator[Any]:
    yield from field.metadata
    for each in parts_of(field.annotation):
        yield from getattr(each, "__metadata__", ())


def _quantity(field: FieldInfo) -> str | None:
    """Example of a quantity with its unit, where the key holds one."""
    for each in _all_metadata(field):
        schema = getattr(each, "json_schema", None)
        if isinstance(schema, dict) and schema.get("examples"):
            return str(schema["examples"][0])
    return None


def _bounds(field: FieldInfo) -> str:
    found: dict[str, Any] = {}
    for each in _all_metadata(field):
        inner = each.metadata if isinstance(each, FieldInfo) else [each]
        for bound in inner:
            for name in ("ge", "gt", "le", "lt"):
                if getattr(bound, name, None) is not None:
                    found.setdefault(name, getattr(bound, name))
    if _quantity(field):
        return ""
    if "ge" in found and "le" in found:
        return f"{found['ge']:,} to {found['le']:,}"
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return ", ".join(f"{words[name]} {value:,}" for name, value in found.items())


__all__ = [
    "example_of",
    "is_mapping",
    "is_sequence",
    "key_of",
    "key_paths",
    "meaning",
    "model_for",
    "models_of",
    "parts_of",
    "takes_a_name",
]
