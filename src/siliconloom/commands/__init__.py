"""The commands of ``loom``, one file each, with the function ``command`` that typer reads its options from.

A command imports what it needs when it runs, and is itself imported when it is asked for.
"""
