"""Programs as text: one line an instruction, with only the fields that matter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from siliconloom.arch.isa import Instruction, Program, set_bits
from siliconloom.arch.opcodes import Opcode


def disassemble(program: Program | Iterable[Instruction]) -> str:
    """One line an instruction, indented by loop depth, with only the fields that matter."""
    instructions = program.instructions if isinstance(program, Program) else tuple(program)
    names = [s.name for s in program.semaphores] if isinstance(program, Program) else []
    lines, depth = [], 0
    for number, i in enumerate(instructions):
        if i.opcode == Opcode.NEXT:
            depth -= 1
        lines.append(f"{number:4d}  {'  ' * max(depth, 0)}{_line(i, names)}".rstrip())
        if i.opcode == Opcode.LOOP:
            depth += 1
    return "\n".join(lines)


def title(i: Instruction) -> str:
    """What an instruction does, without where its operands are and what it waits for."""
    return " ".join([i.opcode.name.lower(), *(word for word in i.opcode.spec.operands(i) if "[" not in word)])


def _line(i: Instruction, names: Sequence[str]) -> str:
    parts = [i.opcode.name.lower()]
    parts += i.opcode.spec.operands(i)
    for label, mask, levels in (
        ("wait", i.wait, 0),
        ("first", i.first_wait, i.first),
        ("release", i.release, 0),
        ("post", i.post, 0),
        ("last", i.last_post, i.last),
    ):
        if mask:
            where = "@" + "".join(str(b) for b in set_bits(levels)) if levels else ""
            parts.append(f"{label}{where}:" + ",".join(names[b] if b < len(names) else f"s{b}" for b in set_bits(mask)))
    return " ".join(parts)


__all__ = ["disassemble", "title"]
