"""Whether the event kernel has been compiled on this machine before."""

from __future__ import annotations

import os
from pathlib import Path


def is_compiled() -> bool:
    """Tell whether Numba has a cached kernel to load; also true when the JIT is off and nothing will be compiled."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return True
    folder = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(folder)] if folder else [Path(__file__).resolve().parent / "__pycache__"]
    return any(path.is_dir() and any(path.rglob("kernel.run-*.nbi")) for path in places)
