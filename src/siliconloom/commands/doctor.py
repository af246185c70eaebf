"""``loom doctor``."""

from __future__ import annotations

from siliconloom.commands.options import Json

EXAMPLES = ("loom doctor", "loom doctor --json -")
"""Shown below the command's help."""


def command(json_file: Json = None) -> None:
    """Say what is installed, what is missing, and what mends it.

    The exit status is 1 where something is broken that every command needs; a missing extra is no failure.
    """
    from siliconloom.arch.errors import CheckFailed
    from siliconloom.evaluate.installed import doctor
    from siliconloom.render.installed import doctor_lines
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.tables import console

    check_outputs({"--json": json_file})
    found = doctor()
    if json_file is not None:
        write_json(json_file, found)
    if json_file != "-":
        doctor_lines(found, console())
    if not found["ok"]:
        raise CheckFailed("what every command needs is missing, of another version or does not work, see above")
