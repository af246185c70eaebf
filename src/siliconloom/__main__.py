"""``python -m siliconloom`` is ``loom``."""

from siliconloom.start import loom

loom()
