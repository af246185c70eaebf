"""Ctrl-C while a kernel is compiled: it ends the command, at once where that can be and never unheard.

Searches end with what they have found when they are interrupted, so that an interrupt that only happens to come while
one of them has a kernel compiled, for tens of seconds, is of a kind of its own.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

CALLBACKS = "_raw_object_cache"
"""How functions of llvmlite begin that LLVM calls back: ctypes drops what is raised in them."""


class CompilationInterrupted(KeyboardInterrupt):
    """Somebody interrupted the compilation of a kernel: no search is at its end with what it has found until then."""


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """An interrupt within the block raises `CompilationInterrupted`, by its end if not before.

    Where somebody else listens to interrupts, or in another thread than the first, the block is left alone.
    """
    first = threading.current_thread() is threading.main_thread()
    if not first or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    heard = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        while frame is not None:
            if frame.f_code.co_name.startswith(CALLBACKS):
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if heard:
            raise CompilationInterrupted


__all__ = ["CompilationInterrupted", "compiling"]
