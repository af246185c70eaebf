"""Where the console script begins: importing the command line takes a tenth of a second, in which Ctrl-C may come."""

import sys


def loom() -> None:
    """Console script; an interrupt is told in a line, however early it comes."""
    try:
        from siliconloom.cli import INTERRUPTED, entry
    except KeyboardInterrupt:
        print("loom: interrupted; nothing was begun", file=sys.stderr)
        sys.exit(130)
    try:
        entry()
    except KeyboardInterrupt:  # before the command line listens, or after
        print("loom: interrupted; nothing was left half written", file=sys.stderr)
        sys.exit(INTERRUPTED)


__all__ = ["loom"]
