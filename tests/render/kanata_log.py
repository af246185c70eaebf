"""A strict reader of Kanata logs, version 4, written from the format's document and not from what writes them here."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Logged:
    """What a log says of one instruction."""

    simulator: int
    thread: int
    labels: dict[int, str] = field(default_factory=dict)
    stages: list[tuple[str, int, int]] = field(default_factory=list)
    open: tuple[str, int] | None = None
    retired: tuple[int, int] | None = None


def read_log(text: str) -> list[Logged]:
    """Every instruction of a log; raises `ValueError` with the line that breaks a rule."""
    lines = text.split("\n")
    if lines.pop() != "":
        raise ValueError("the last line does not end")
    if lines[:1] != ["Kanata\t0004"]:
        raise ValueError("line 1: no header of version 4")
    if len(lines) < 2 or not lines[1].startswith("C=\t"):
        raise ValueError("line 2: no first cycle")
    now, known = int(lines[1].removeprefix("C=\t")), []
    for place, line in enumerate(lines[2:], 3):
        name, *words = line.split("\t")
        try:
            if name == "C":
                (step,) = map(int, words)
                if step < 1:
                    raise ValueError("time does not go on")
                now += step
            else:
                obey(name, words, now, known)
        except ValueError as error:
            raise ValueError(f"line {place}: {line}: {error}") from None
    for number, each in enumerate(known):
        if each.retired is None:
            raise ValueError(f"instruction {number} never retires")
    return known


def obey(name: str, words: list[str], now: int, known: list[Logged]) -> None:
    """Take one command of an instruction into what is known; raises `ValueError` where it breaks a rule."""
    columns = {"I": 3, "L": 3, "S": 3, "E": 3, "R": 3, "W": 3}
    if name not in columns or len(words) != columns[name]:
        raise ValueError("no such command, or not so many columns")
    number = int(words[0])
    if name == "I":
        if number != len(known):
            raise ValueError("identifiers in the file are not given one after the other")
        known.append(Logged(int(words[1]), int(words[2])))
        return
    if not 0 <= number < len(known):
        raise ValueError("an instruction that has not begun")
    each = known[number]
    if each.retired is not None:
        raise ValueError("an instruction that has retired")
    if name == "L":
        each.labels[int(words[1])] = each.labels.get(int(words[1]), "") + words[2]
    elif name == "S":
        if each.open is not None:
            raise ValueError("a stage in a lane whose stage has not ended")
        if words[1] != "0" or not words[2]:
            raise ValueError("a lane that nobody uses, or a stage without a name")
        each.open = (words[2], now)
    elif name == "E":
        if each.open is None or each.open[0] != words[2] or words[1] != "0":
            raise ValueError("the end of a stage that has not begun")
        each.stages.append((words[2], each.open[1], now))
        each.open = None
    elif name == "R":
        if each.open is not None:
            raise ValueError("it retires in a stage")
        if words[2] != "0":
            raise ValueError("nothing is flushed here")
        each.retired = (int(words[1]), now)
    else:
        raise ValueError("nothing is said of dependencies here")
