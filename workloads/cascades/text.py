"""The text of an extended Einsum: ``SLD[m1, p] = SLN[m1, m0, p]``, ``GM[p] = QK[m, p] | max``.

After a bar stand the reduction (``sum`` without it) and conditions, separated by commas: ``O[i] = S[i, j] | sum,
j <= i``. A coordinate is a variable with an offset (``m1+1``), a number, or a rank in capitals, which is its extent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.workloads.cascades.einsum import (
    FUNCTIONS,
    OPERATORS,
    REDUCTIONS,
    UNARY,
    Coordinate,
    EinsumCall,
    EinsumNumber,
    Expression,
    ExtendedEinsum,
    Precedes,
    TensorAccess,
)

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<name>[A-Za-z]\w*)|(?P<mark><=|<|[\[\](),=|+*/-]))"
)
MAX_TEXT = 500
MAX_DEPTH = 40


class EinsumTextError(LoomError):
    """What is wrong with an Einsum's text, and at which character (counted from zero)."""

    def __init__(self, rule: str, place: int, nearest: str | None = None) -> None:
        self.rule, self.place, self.nearest = rule, place, nearest
        super().__init__(f"character {place + 1}: {rule}" + (f"; did you mean '{nearest}'?" if nearest else ""))


def parse_einsum(text: str, ranks: Mapping[str, str]) -> ExtendedEinsum:
    """Read one extended Einsum; ``ranks`` has the rank of every variable. Raises `EinsumTextError`."""
    return _Parser(text, ranks).einsum()


class _Parser:
    def __init__(self, text: str, ranks: Mapping[str, str]) -> None:
        if len(text) > MAX_TEXT:
            raise EinsumTextError(f"an Einsum has at most {MAX_TEXT} characters", MAX_TEXT)
        self.text, self.ranks, self.depth = text, ranks, 0
        self.tokens = list[tuple[str, str, int]]()
        place = 0
        while text[place:].strip():
            found = TOKEN.match(text, place)
            if not found:
                bad = place + len(text[place:]) - len(text[place:].lstrip())
                raise EinsumTextError(f"'{text[bad]}' has no meaning in an Einsum", bad)
            kind = str(found.lastgroup)
            self.tokens.append((kind, found[kind], found.start(kind)))
            place = found.end()
        self.tokens.append(("end", "the end", len(text.rstrip())))
        self.next = 0

    def einsum(self) -> ExtendedEinsum:
        output = self.access()
        self.expect("=")
        expression = self.sum()
        reduction, conditions = "sum", list[Precedes]()
        if self.accept("|"):
            _, reduction, place = self.take("name", "a reduction")
            if reduction not in REDUCTIONS:
                rule = f"a reduction is one of {', '.join(REDUCTIONS)}, not {reduction}"
                raise EinsumTextError(rule, place, nearest_name(reduction, REDUCTIONS))
            while self.accept(","):
                left = self.variable()
                strict = self.accept("<")
                if not strict:
                    self.expect("<=")
                conditions.append(Precedes(left, self.variable(), strict))
        if len(conditions) > 1:
            raise EinsumTextError("not supported: more than one condition", self.text.index("|"))
        kind, word, place = self.tokens[self.next]
        if kind != "end":
            raise EinsumTextError(f"{word} is more than the Einsum", place)
        made = ExtendedEinsum(output, expression, reduction, tuple(conditions), " ".join(self.text.split()))
        missing = [v for c in conditions for v in (c.left, c.right) if v not in made.variables]
        if missing:
            raise EinsumTextError(f"a condition on {missing[0]}, which no access has", self.text.index("|"))
        unread = [v for v in output.variables if all(v not in a.variables for a in made.inputs)]
        if unread and made.inputs and any(c.offset for c in output.coordinates if c.variable == unread[0]):
            raise EinsumTextError(f"the step along {unread[0]} reads nothing along it", 0)
        if len(set(output.variables)) < len(output.variables):
            raise EinsumTextError("an output has every variable once", 0)
        return made

    def sum(self) -> Expression:
        left = self.product()
        while self.tokens[self.next][1] in ("+", "-"):
            sign = self.step()[1]
            left = EinsumCall(OPERATORS[sign], (left, self.product()))
        return left

    def product(self) -> Expression:
        left = self.factor()
        while self.tokens[self.next][1] in ("*", "/"):
            sign = self.step()[1]
            left = EinsumCall(OPERATORS[sign], (left, self.factor()))
        return left

    def factor(self) -> Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise EinsumTextError("nested too deeply", self.tokens[self.next][2])
        try:
            if self.accept("-"):
                inner = self.factor()
                negated = EinsumCall("negative", (inner,))
                return EinsumNumber(-inner.value) if isinstance(inner, EinsumNumber) else negated
            if self.accept("("):
                inside = self.sum()
                self.expect(")")
                return inside
            kind, word, place = self.tokens[self.next]
            if kind == "number":
                self.step()
                return EinsumNumber(float(word))
            if kind != "name":
                raise EinsumTextError(f"a tensor, a number or a function is expected, not {word}", place)
            if word == "inf":
                self.step()
                return EinsumNumber(float("inf"))
            if self.tokens[self.next + 1][1] == "(":
                return self.call()
            return self.access()
        finally:
            self.depth -= 1

    def call(self) -> Expression:
        _, name, place = self.step()
        if name not in FUNCTIONS:
            rule = f"unknown function {name}; known: {', '.join(FUNCTIONS)}"
            raise EinsumTextError(rule, place, nearest_name(name, FUNCTIONS))
        self.expect("(")
        arguments = [self.sum()]
        while self.accept(","):
            arguments.append(self.sum())
        self.expect(")")
        wanted = 1 if name in UNARY else 2
        if len(arguments) != wanted:
            raise EinsumTextError(f"{name} takes {wanted} argument{'s' * (wanted > 1)}, not {len(arguments)}", place)
        return EinsumCall(name, tuple(arguments))

    def access(self) -> TensorAccess:
        _, tensor, _ = self.take("name", "a tensor")
        coordinates = list[Coordinate]()
        if self.accept("["):
            coordinates.append(self.coordinate())
            while self.accept(","):
                coordinates.append(self.coordinate())
            self.expect("]")
        return TensorAccess(tensor, tuple(coordinates))

    def coordinate(self) -> Coordinate:
        kind, word, place = self.step()
        if kind == "number":
            if not word.isdigit():
                raise EinsumTextError(f"a coordinate is a whole number, not {word}", place)
            return Coordinate(offset=int(word))
        if kind != "name":
            raise EinsumTextError(f"a coordinate is expected, not {word}", place)
        offset = 0
        for sign in ("+", "-"):
            if self.accept(sign):
                _, number, at = self.take("number", "an offset")
                if not number.isdigit():
                    raise EinsumTextError(f"an offset is a whole number, not {number}", at)
                offset = int(sign + number)
                break
        if word in self.ranks:
            return Coordinate(variable=word, offset=offset)
        if word in self.ranks.values():
            return Coordinate(rank=word, offset=offset)
        raise self.unknown(word, place)

    def variable(self) -> str:
        _, word, place = self.take("name", "a variable")
        if word not in self.ranks:
            raise self.unknown(word, place)
        return word

    def unknown(self, word: str, place: int) -> EinsumTextError:
        known = ", ".join(self.ranks)
        return EinsumTextError(f"unknown variable {word}; known: {known}", place, nearest_name(word, self.ranks))

    def step(self) -> tuple[str, str, int]:
        token = self.tokens[self.next]
        self.next = min(self.next + 1, len(self.tokens) - 1)
        return token

    def take(self, kind: str, what: str) -> tuple[str, str, int]:
        token = self.step()
        if token[0] != kind:
            raise EinsumTextError(f"{what} is expected, not {token[1]}", token[2])
        return token

    def accept(self, mark: str) -> bool:
        if self.tokens[self.next][1] != mark or self.tokens[self.next][0] != "mark":
            return False
        self.next += 1
        return True

    def expect(self, mark: str) -> None:
        _, word, place = self.tokens[self.next]
        if not self.accept(mark):
            raise EinsumTextError(f"'{mark}' is expected, not {word}", place)


__all__ = ["EinsumTextError", "parse_einsum"]
