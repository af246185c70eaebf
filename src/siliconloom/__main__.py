"""``python -m siliconloom`` is ``loom``."""

from siliconloom.cli import entry

entry()
