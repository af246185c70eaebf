"""Templates of the files that go into other people's tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template of this folder; it may include those of ``rtl.npu`` as ``npu/...``."""
    loaders = [
        PackageLoader("siliconloom.rtl.integration", "."),
        PrefixLoader({"npu": PackageLoader("siliconloom.rtl.npu", ".")}),
    ]
    environment = Environment(
        loader=ChoiceLoader(loaders), undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    return environment.get_template(f"{template}.j2").render(**values)
