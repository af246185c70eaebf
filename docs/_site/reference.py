"""Reference pages of the site, made from the code: commands, schemas, Python API, library, published results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

WIDTH = 100
"""Columns of a command's help."""
KINDS_OF_FILES = ("chip", "system", "gpu", "network", "communication", "mapping", "workload", "cascade")
"""Schemas of what is written by hand; the others are of results."""


def pages(root: Path, *, papers: bool = True) -> dict[str, str]:
    """Text of every page by where it stands in the site."""
    made = {"reference/commands.md": commands(), "reference/api.md": api(), "reference/library.md": library(root)}
    made |= {f"reference/schema-{kind}.md": schema(kind) for kind in schema_kinds()}
    return made | {"papers.md": gallery(papers)}


def title_of(text: str) -> str:
    """The heading of a page."""
    return re.match(r"# (.*)", text)[1]  # type: ignore[index]


def commands() -> str:
    """``--help`` of every command."""
    import typer

    from siliconloom.cli import app
    from siliconloom.commands.group import COMMANDS

    group = typer.main.get_command(app)
    text = "# Commands\n\nWhat `loom COMMAND --help` prints.\n\n## loom\n\n" + _fence(_help(group, "loom", None))
    parent = typer.Context(group, info_name="loom")
    for name in COMMANDS:
        command = group.commands[name]  # type: ignore[attr-defined]
        text += f"\n## loom {name}\n\n" + _fence(_help(command, name, parent))
        if hasattr(command, "commands"):
            within = typer.Context(command, info_name=name, parent=parent)
            for inner, each in command.commands.items():
                text += f"\n### loom {name} {inner}\n\n" + _fence(_help(each, inner, within))
    return text


def _help(command: Any, name: str, parent: Any) -> str:
    import typer

    context = typer.Context(command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH)
    return str(command.get_help(context))


def _fence(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


def schema_kinds() -> tuple[str, ...]:
    """Names that ``loom schema`` takes."""
    from siliconloom.evaluate.schemas import KINDS

    return KINDS


def schema(kind: str) -> str:
    """Every key of a schema with its type, its unit and range, its default, and what it means."""
    from siliconloom.evaluate.schemas import schema_of

    whole = schema_of(kind)
    what = "a description that is written by hand" if kind in KINDS_OF_FILES else "a result, as `--json` writes it"
    text = f"# Schema: {kind}\n\nKeys of {what}. `loom schema {kind}` prints the same as JSON Schema.\n"
    text += _object(whole, kind, whole.get("description", ""))
    for name, each in sorted(whole.get("$defs", {}).items()):
        text += _object(each, name, each.get("description", ""), f"\n({_label(kind, name)})=\n## {name}\n", kind)
    return text


def _label(kind: str, name: str) -> str:
    return f"schema-{kind}-{name}".lower().replace("_", "-")


def _object(found: Mapping[str, Any], name: str, description: str, heading: str = "", kind: str = "") -> str:
    text = heading + (f"\n{_prose(description)}\n" if description else "")
    keys = found.get("properties")
    if keys is None:
        return text + f"\n{_cell(_type(found, kind or name))} {_range(found)}".rstrip() + "\n"
    needed = set(found.get("required", ()))
    text += "\n| key | type | unit, range | default | meaning |\n|---|---|---|---|---|\n"
    for key, each in keys.items():
        default = "required" if key in needed else _default(each)
        cells = (f"`{key}`", _type(each, kind or name), _range(each), default, each.get("description", ""))
        text += "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"
    for pattern, each in found.get("patternProperties", {}).items():
        text += f"| `{_cell(pattern)}` | {_cell(_type(each, kind or name))} | | | any name |\n"
    return text


def _prose(text: str) -> str:
    """A docstring as a paragraph: what follows its sections is of the code."""
    return _plain(re.split(r"\n\s*(?:Parameters|Raises|Returns)\n", text)[0].strip())


def _plain(text: str) -> str:
    """Words of a docstring whose markup is that of reStructuredText."""
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _cell(text: str) -> str:
    return _plain(" ".join(str(text).split())).replace("|", "\\|").replace("<", "&lt;")


def _type(each: Mapping[str, Any], kind: str) -> str:
    if "$ref" in each:
        name = each["$ref"].rpartition("/")[2]
        return f"[{name}](#{_label(kind, name)})"
    for several in ("anyOf", "oneOf"):
        if several in each:
            kinds = [_type(part, kind) for part in each[several]]
            return " or ".join(dict.fromkeys(k for k in kinds if k))
    if "const" in each:
        return f"`{each['const']}`"
    if "enum" in each:
        return ", ".join(f"`{value}`" for value in each["enum"])
    if each.get("type") == "array":
        inner = each.get("items")
        return f"list of {_type(inner, kind)}" if inner else "list"
    if each.get("type") == "object":
        inner = next(iter(each.get("patternProperties", {}).values()), each.get("additionalProperties"))
        return f"{_type(inner, kind)} by names" if isinstance(inner, Mapping) else "mapping"
    return str(each.get("type", "any")).replace("string", "text")


BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "pattern": "like `{}`",
}


def _range(each: Mapping[str, Any]) -> str:
    said = [f"such as `{example}`" for example in each.get("examples", ())]
    said += [form.format(each[key]) for key, form in BOUNDS.items() if key in each]
    parts = [*each.get("anyOf", ()), each.get("items")]
    said += [text for part in parts if isinstance(part, Mapping) for text in _range(part).split(", ") if text]
    return ", ".join(dict.fromkeys(said))


def _default(each: Mapping[str, Any]) -> str:
    value = each.get("default")
    return "" if value in (None, "", [], {}) else f"`{json.dumps(value)}`"


def api() -> str:
    """The public names of ``import siliconloom``, from their docstrings."""
    import siliconloom

    text = (
        "# Python API\n\n`import siliconloom as sl`: the names of `siliconloom.__all__`. How they are used is in "
        "[from Python](../python.md).\n"
    )
    for name in siliconloom.__all__:
        value = getattr(siliconloom, name)
        if not callable(value):
            continue
        directive = "autoclass" if isinstance(value, type) else "autofunction"
        module = value.__module__
        members = ":members:\n" if name == "Result" else ""
        text += f"\n## {name}\n\n```{{eval-rst}}\n.. {directive}:: {module}.{name}\n"
        text += f"   {members.strip()}\n" if members else ""
        text += "```\n"
    return text


def library(root: Path) -> str:
    """Every entry of the library with what its description says, and the whole of chips, systems and networks."""
    from siliconloom.arch.names import LIBRARY, chip_names, gpu_names, network_names, system_names
    from siliconloom.workloads.names import LIBRARY as WORKLOADS
    from siliconloom.workloads.names import workload_names

    text = "# The library\n\nNames that stand for files (`loom list`). `loom new chip NAME --from CHIP` copies one.\n"
    whole = {"Chips": (LIBRARY, chip_names()), "Systems": (LIBRARY, system_names())}
    whole |= {"Networks": (LIBRARY / "network", network_names()), "GPUs": (LIBRARY / "gpu", gpu_names())}
    tables = {**whole, "Workloads": (WORKLOADS, workload_names())}
    for title, (folder, names) in tables.items():
        text += f"\n## {title}\n\n| name | description |\n|---|---|\n"
        text += "".join(f"| {name} | {_cell(_said(folder / f'{name}.yaml'))} |\n" for name in names)
    text += "\n## Descriptions\n"
    for folder, names in whole.values():
        for name in names:
            source = (folder / f"{name}.yaml").read_text(encoding="utf-8")
            text += f"\n### {name}\n\n" + _fence(source, "yaml")
    return text


def _said(path: Path) -> str:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    model = data.get("model")
    kind = f" ({model['model_type']})" if isinstance(model, Mapping) and "model_type" in model else ""
    return str(data.get("description") or data.get("product") or data.get("source") or data["kind"]) + kind


def gallery(derive: bool) -> str:
    """Published results derived again, each with its table; those that take long are named only."""
    from siliconloom.reproduce import CARDS
    from siliconloom.reproduce.run import LONG, load_card

    text = (
        "# Gallery of published results\n\nEvery figure of ours in these tables was computed when this page was made. "
        "What is simulated for each and why some are off is in [published results](reproduce.md). "
        "`loom reproduce CARD` derives one again.\n"
    )
    for name in sorted(CARDS):
        if name in LONG or not derive:
            text += f"\n## {name}\n\nDeriving it takes too long for this page: `loom reproduce {name}`.\n"
            continue
        card = load_card(name)
        text += f"\n## {name}\n\n{_cell(card.title)}. {_cell(card.source)}\n\n"
        text += "| figure | ours | published | error | allowed | |\n|---|---|---|---|---|---|\n"
        text += "".join(f"| {' | '.join(line)} |\n" for line in _rows(card.rows))
        causes = dict.fromkeys(row.cause for row in card.rows if row.cause and not row.within)
        text += "".join(f"\n- {_cell(cause)}" for cause in causes) + ("\n" if causes else "")
    return text


SHOWN = 12
"""Rows of one kind up to which a gallery shows each; more are shown as the worst of them."""


def _rows(rows: Any) -> Iterator[tuple[str, ...]]:
    kinds: dict[str, list[Any]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    for kind, group in kinds.items():
        if len(group) > SHOWN:
            worst = max(group, key=lambda row: abs(row.error or 0.0))
            yield _row(worst, f"{kind} ({len(group)} rows, worst {worst.name.removeprefix(kind).strip()})")
        else:
            yield from (_row(row, row.name) for row in group)


def _row(row: Any, name: str) -> tuple[str, ...]:
    error = "" if row.error is None else f"{row.error:+.2%}"
    ours = "" if row.ours is None else f"{row.ours:.4g}"
    return _cell(name), ours, f"{row.published:.4g}", error, f"{row.tolerance:.1%}", row.verdict
