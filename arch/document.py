"""YAML documents that remember where every value was written.

``Document.load`` reads a file (or a library entry), ``override`` applies ``--set path=value``, ``validate`` turns the
data into a typed model; each of them raises `DescriptionError` with file, line, column, key path, rule, value and
the nearest valid name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeVar, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from siliconloom.arch.errors import DescriptionError, LoomError, Position, nearest_name, shortened
from siliconloom.arch.inputs import read_input
from siliconloom.arch.names import library_names

MAX_BYTES = 16 * 2**20
MAX_NODES = 200_000
MAX_DEPTH = 64
KEPT_TEXTS = 64
"""Texts of YAML that are kept with what they say; a library's file is asked for its kind first, then read."""
MAX_SHOWN = 120
"""Characters of an override that errors show."""
NO_TAGS = "tags (!) are not used in descriptions"

Key = str | int
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z][A-Za-z0-9._-]*$")]
"""What a description may be called: a name that file names, Verilog and terminals all take."""
Model = TypeVar("Model", bound=BaseModel)


class Description(BaseModel):
    """Base of every description: unknown keys are refused with the nearest valid one; values are immutable.

    ``true`` and ``false`` are not numbers, although Python takes them for 1 and 0.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_enum_values=False, arbitrary_types_allowed=False, defer_build=True
    )

    LATER: ClassVar[dict[str, str]] = {}
    """Keys that would mean something that is not built, with what that is: they are refused with these words."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            fields = {field.alias or name: field for name, field in cls.model_fields.items()}
            for key, value in data.items():
                if key in cls.LATER:
                    raise rule_at(key, f"not supported: {cls.LATER[key]}")
                if key not in fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key '{key}'; valid keys: {valid}",
                        {"key": str(key), "valid": ", ".join(fields), "nearest": nearest_name(str(key), fields)},
                    )
                some = value if isinstance(value, list) else [value]
                if any(isinstance(each, bool) for each in some) and _numbers_alone(fields[key]):
                    raise PydanticCustomError("not_a_number", "must be a number", {"key": key, "value": value})
        return data


def _numbers_alone(field: FieldInfo) -> bool:
    """Whether values are numbers or lists of them; quantities have rules of their own."""
    kinds = list(_kinds(field.annotation))
    numbers = any(kind in (int, float) for kind in kinds)
    return (
        numbers
        and bool not in kinds
        and not any(isinstance(each, BeforeValidator) for each in (*kinds, *field.metadata))
    )


def _kinds(annotation: Any) -> Iterator[Any]:
    """Everything that an annotation is made of."""
    yield annotation
    for each in get_args(annotation):
        yield from _kinds(each)


def rule_at(key: str, rule: str, value: object = None) -> PydanticCustomError:
    """What a validator of a whole description raises for one key: ``key`` is its path, ``value`` what it must not be.

    `Document.validate` turns it into a `DescriptionError` that points at the key.
    """
    return PydanticCustomError("rule_at", "{rule}", {"key": key, "rule": rule, "value": value})


class Document:
    """Plain data read from YAML, with the position of every key path; ``assigned`` are the paths that overrides set."""

    def __init__(self, data: dict[str, Any], positions: dict[tuple[Key, ...], Position], source: str) -> None:
        self.data, self.positions, self.source = data, positions, source
        self.assigned: dict[tuple[Key, ...], None] = {}

    @classmethod
    def load(cls, path: str | Path) -> Document:
        """Read one YAML mapping from ``path``; raises `DescriptionError`, or `LoomError` when it cannot be read."""
        text = read_input(path, MAX_BYTES, "YAML file")
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str = "<text>") -> Document:
        """Read one YAML mapping from ``text``; ``source`` is the name that errors show."""
        known, places = _read_yaml(text, source)
        data, positions = _copied(known), dict(places)
        top = Position(source, 1, 1)
        if not positions:
            raise DescriptionError("the document is empty", position=top)
        if not isinstance(data, dict):
            raise DescriptionError("the document must be a mapping of keys to values", position=top)
        return cls(data, positions, source)

    @classmethod
    def of(cls, data: Mapping[Any, Any], source: str) -> Document:
        """Take plain data, or a description's, that is at hand; ``source`` is the name that errors show.

        Raises
        ------
        DescriptionError
            For what is nested too deeply, as YAML of that depth would be.
        """
        top = Position(source)
        return cls(_plain(data, top), {(): top}, source)

    def __str__(self) -> str:
        return self.source

    def override(
        self,
        assignments: Iterable[tuple[str, str]],
        prefix: str = "",
        places: Mapping[str, Position] = MappingProxyType({}),
    ) -> None:
        """Apply ``--set path=value`` pairs in order; values are read as YAML, errors show ``prefix`` before paths.

        ``places`` says where a path was written, if that is not the command line.
        """
        for path, text in assignments:
            said = Position(f"--set {shortened(f'{prefix}{path}={text}', MAX_SHOWN)}")
            origin = places.get(path, said)
            named = path if path in places else ""
            try:
                value = _copied(_read_yaml(text, str(origin))[0]) if text.strip() else ""
            except DescriptionError as error:
                raise DescriptionError(f"the value is {error.rule}", position=origin, path=named, value=text) from None
            keys = path.split(".")
            if not all(keys):
                rule = "a key path has names separated by single dots"
                raise DescriptionError(rule, position=origin, path=named, value=path)
            here: Any = self.data
            trail: tuple[Key, ...] = ()
            for name in keys[:-1]:
                key = _step(here, name, origin, trail)
                if isinstance(here, dict) and (key not in here or here[key] is None):
                    here[key] = {}
                    self.positions[(*trail, key)] = origin
                here, trail = here[key], (*trail, key)
            key = _step(here, keys[-1], origin, trail)
            here[key] = value
            trail = (*trail, key)
            for known in [p for p in self.positions if p[: len(trail)] == trail]:
                del self.positions[known]
            self.positions[trail] = origin
            self.assigned[trail] = None

    def position(self, path: Sequence[Key]) -> Position:
        """Where the value at ``path`` was written, or its nearest enclosing value."""
        for length in range(len(path), -1, -1):
            found = self.positions.get(tuple(path[:length]))
            if found is not None:
                return found
        return Position(self.source, 1, 1)

    def error(self, rule: str, path: Sequence[Key] = (), *, value: object = None, nearest: str | None = None) -> Any:
        """Make the `DescriptionError` that points at ``path`` (raise it yourself)."""
        return DescriptionError(rule, position=self.position(path), path=_dotted(path), value=value, nearest=nearest)

    def expect_kind(self, kinds: Sequence[str]) -> str:
        """Value of the top-level key ``kind``, which must be one of ``kinds``."""
        kind = self.data.get("kind")
        if kind is None:
            raise self.error(f"the key 'kind' is missing; it must be one of {', '.join(kinds)}")
        if kind not in kinds:
            raise self.error(
                f"must be one of {', '.join(kinds)}", ("kind",), value=kind, nearest=nearest_name(str(kind), kinds)
            )
        return str(kind)

    def validate(self, model: type[Model]) -> Model:
        """Build ``model`` from the data; the first broken rule is raised as `DescriptionError`."""
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            raise self._translate(error.errors(include_url=False)) from None

    def _translate(self, errors: Sequence[Any]) -> DescriptionError:
        first = min(errors, key=lambda e: e["type"] not in ("unknown_key", "not_a_number", "rule_at"))
        path = self._strip_tags(first["loc"])
        context: dict[str, Any] = first.get("ctx") or {}
        kind, rule, value, nearest = first["type"], first["msg"], first.get("input"), None
        if kind == "unknown_key":
            path, value, nearest = (*path, context["key"]), None, context.get("nearest")
        elif kind == "not_a_number":
            path, value = (*path, context["key"]), context["value"]
        elif kind == "rule_at":
            path, rule, value = (*path, *context["key"].split(".")), context["rule"], context["value"]
        elif kind == "missing":
            rule, value = f"the key '{first['loc'][-1]}' is missing", None
            path = path[:-1] if path and path[-1] == first["loc"][-1] else path
        elif (also := self._words_beside(errors, first, path)) is not None:
            rule, nearest = also
        elif kind in ("enum", "literal_error"):
            choices = [c.strip(" '") for c in str(context.get("expected", "")).replace(" or ", ", ").split(", ")]
            rule = f"must be one of {', '.join(choices)}"
            nearest = nearest_name(str(value), choices)
        elif kind == "union_tag_invalid":
            choices = [c.strip(" '") for c in str(context["expected_tags"]).split(", ")]
            path, value = (*path, "kind"), context["tag"]
            rule, nearest = f"must be one of {', '.join(choices)}", nearest_name(str(value), choices)
        elif kind == "union_tag_not_found":
            rule, value = "the key 'kind' is missing", None
            meant = next((key for key in first["input"] if nearest_name(str(key), ["kind"])), None)
            if meant is not None:
                path, rule = (*path, meant), f"unknown key '{meant}', and the key 'kind' is missing"
                nearest = "kind"
        elif kind == "value_error":
            rule = str(context.get("error", rule))
        elif kind in ("model_type", "model_attributes_type", "dict_type"):
            rule = "must be a mapping of keys to values"
        elif kind == "too_short":
            least = context["min_length"]
            rule = f"must have at least {least} {'entry' if least == 1 else 'entries'}"
        elif kind == "too_long":
            most = context["max_length"]
            rule = f"must have at most {most} {'entry' if most == 1 else 'entries'}"
        elif isinstance(value, float) and isnan(value):
            rule = "must be a number"
        elif rule.startswith("String should "):
            rule = "must " + rule.removeprefix("String should ")
        elif rule.startswith("Input should be "):
            rule = "must be " + rule.removeprefix("Input should be ").replace("a valid tuple", "a list")
        if isinstance(value, dict | list):
            value = context.get("actual_length") if kind == "too_long" else None
        return DescriptionError(rule, position=self.position(path), path=_dotted(path), value=value, nearest=nearest)

    def _words_beside(self, errors: Sequence[Any], first: Any, path: tuple[Key, ...]) -> tuple[str, str | None] | None:
        """Of a value that is a word where a word, a number or a list may stand: the rule, and the nearest word."""
        kinds = {e["type"]: e for e in errors if self._strip_tags(e["loc"]) == path}
        if "literal_error" not in kinds or len(kinds) == 1 or not isinstance(first.get("input"), str):
            return None
        expected = str(kinds["literal_error"]["ctx"]["expected"]).replace(" or ", ", ")
        words = [word.strip(" '") for word in expected.split(", ")]
        others = ["a number"] * any(kind in kinds for kind in ("float_parsing", "int_parsing"))
        others += ["a list"] * any(kind in kinds for kind in ("tuple_type", "list_type"))
        return f"must be {' or '.join([*words, *others])}", nearest_name(str(first["input"]), words)

    def _strip_tags(self, loc: Sequence[Key]) -> tuple[Key, ...]:
        """Drop the union tags that pydantic puts between the real keys of an error's location."""
        path: list[Key] = []
        here: Any = self.data
        for step in loc:
            present = step in here if isinstance(here, dict) else isinstance(step, int) and _has_index(here, step)
            if present:
                here = here[step]
            elif step == loc[-1] and isinstance(here, dict) and here.get("kind") != step:
                here = None
            else:
                continue
            path.append(step)
        return tuple(path)


JSON_FLOAT = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?[eE][-+]?\d+")
"""A number with an exponent, as JSON writes it (RFC 8259, section 6)."""


@lru_cache(maxsize=KEPT_TEXTS)
def _read_yaml(text: str, source: str) -> tuple[Any, dict[tuple[Key, ...], Position]]:
    """Plain data of one YAML document and where each value stands; no data and no positions when it is empty.

    Whoever changes these takes a copy: the same text is read once.
    """
    top = Position(source, 1, 1)
    try:
        loader = yaml.CSafeLoader(text) if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            reader = _Reader(loader, source)
            data = None if node is None else reader.read(node, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Position(source, mark.line + 1, mark.column + 1) if mark else top
        reason = str(error.problem or error.context)
        if "nesting depth" in reason:  # as PyYAML says it from 6.0.4 on
            reason = "nested too deeply"
        raise DescriptionError(f"not valid YAML: {reason}", position=where) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition("\n")[0]
        raise DescriptionError(f"not valid YAML: {reason}", position=top) from None
    return data, reader.positions


def _plain(data: Any, top: Position, depth: int = 0) -> Any:
    """Data with mappings and sequences of any kind as new dictionaries and lists."""
    if depth > MAX_DEPTH:
        raise DescriptionError(f"nested more than {MAX_DEPTH} levels deep", position=top)
    if isinstance(data, Mapping):
        return {key: _plain(value, top, depth + 1) for key, value in data.items()}
    return [_plain(value, top, depth + 1) for value in data] if isinstance(data, list | tuple) else data


def _copied(data: Any) -> Any:
    """Plain data, its mappings and lists new ones."""
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data


class _Reader:
    """Turns YAML nodes into plain data, noting positions, refusing duplicate keys and runaway aliases."""

    def __init__(self, loader: Any, source: str) -> None:
        self.loader, self.source, self.count = loader, source, 0
        self.positions: dict[tuple[Key, ...], Position] = {}

    def read(self, node: yaml.Node, path: tuple[Key, ...]) -> Any:
        where = Position(self.source, node.start_mark.line + 1, node.start_mark.column + 1)
        self.positions.setdefault(path, where)
        self.count += 1
        if self.count > MAX_NODES:
            raise DescriptionError(
                f"the document expands to more than {MAX_NODES} values (aliases repeated too often?)", position=where
            )
        if len(path) > MAX_DEPTH:
            raise DescriptionError(f"nested more than {MAX_DEPTH} levels deep", position=where)
        if isinstance(node, yaml.CollectionNode) and node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise DescriptionError(f"not valid YAML: {NO_TAGS}", position=where, path=_dotted(path), value=node.tag)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*path, index)) for index, child in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, where, path)

    def _scalar(self, node: yaml.ScalarNode, where: Position, path: tuple[Key, ...]) -> Any:
        """Value of plain or quoted text; a tag that the text does not have by itself was written, and is refused."""
        plain = not node.style
        if node.tag != self.loader.resolve(yaml.ScalarNode, node.value, (plain, not plain)):
            raise DescriptionError(f"not valid YAML: {NO_TAGS}", position=where, path=_dotted(path), value=node.tag)
        try:
            value = self.loader.construct_object(node)
            if type(value) is int:
                str(value)  # raises where it has more digits than can be shown, as in hexadecimal
            if plain and type(value) is str and JSON_FLOAT.fullmatch(value):
                return float(value)  # text to YAML 1.1, which wants a point and a sign
            return value
        except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            rule = "not valid YAML: not a value of the kind that it looks like"
            raise DescriptionError(rule, position=where, path=_dotted(path), value=node.value) from None

    def _mapping(self, node: yaml.MappingNode, path: tuple[Key, ...]) -> dict[Any, Any]:
        data: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            where = Position(self.source, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                raise DescriptionError("a key must be plain text", position=where, path=_dotted(path))
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise DescriptionError("merge keys (<<) are not used in descriptions", position=where)
            key = self._scalar(key_node, where, path)
            if not isinstance(key, str | int) or isinstance(key, bool):
                key = key_node.value
            if key in data:
                raise DescriptionError("the key is given twice", position=where, path=_dotted((*path, key)))
            data[key] = self.read(value_node, (*path, key))
            self.positions[(*path, key)] = (
                Position(self.source, value_node.start_mark.line + 1, value_node.start_mark.column + 1)
                if isinstance(value_node, yaml.ScalarNode)
                else where
            )
        return data


def parse_assignments(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Split ``path=value`` texts of ``--set``; raises `LoomError` for a text without ``=``."""
    pairs = []
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise LoomError(f"--set {text}: must look like path.to.key=value")
        pairs.append((path.strip(), value))
    return pairs


def find_file(
    name: str, folder: Path, what: str, suffixes: Sequence[str] = (".yaml",), others: Sequence[str] = ()
) -> Path:
    """Path of a file named on the command line, or of the library entry of that name in ``folder``.

    ``others`` are names that could have been meant besides, of what is looked for elsewhere.
    """
    if not name.strip():
        raise LoomError(f"the name of a {what} is empty; see loom list")
    path = Path(name)
    if os.path.exists(name):  # false, too, for a name that is too long for a file's
        return path
    names = library_names(folder)
    entry = folder / f"{name}.yaml"
    if name in names:
        return entry
    if path.suffix in (*suffixes, ".yml", ".json") or "/" in name:
        raise LoomError(f"{name}: no such file")
    near = nearest_name(name, [*names, *others])
    hint = f"did you mean '{near}'?" if near else "known: " + ", ".join([*names, *others])
    raise LoomError(f"{name}: no such file and no {what} of that name in the library; {hint}")


def find_document(described: str | Document, folder: Path, what: str, others: Sequence[str] = ()) -> Document:
    """Description of a file or of a library entry; of one that is at hand a copy, so that overrides stay in it."""
    if isinstance(described, Document):
        return Document(_copied(described.data), dict(described.positions), described.source)
    return Document.load(find_file(described, folder, what, others=others))


def _has_index(here: object, index: int) -> bool:
    return isinstance(here, list) and index < len(here)


def _step(here: Any, name: str, origin: Position, trail: tuple[Key, ...]) -> Key:
    if isinstance(here, list):
        if name.isdecimal() and len(name) < 10 and int(name) < len(here):
            return int(name)
        raise DescriptionError(
            f"the list has {len(here)} entries: write an index below that",
            position=origin,
            path=_dotted(trail),
            value=name,
        )
    if not isinstance(here, dict):
        raise DescriptionError("is a single value and has no keys below it", position=origin, path=_dotted(trail))
    return name


def _dotted(path: Sequence[Key]) -> str:
    return ".".join(str(step) for step in path)


__all__ = ["Description", "Document", "Key", "find_document", "find_file", "parse_assignments", "rule_at"]
