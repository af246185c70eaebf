"""Software pipelining over nested tiles: one stage runs a tile ahead of the other, also where an outer tile ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from siliconloom.mapper.chip.lowering import STILL, Nest, Segment, Walk

Stage = Callable[[Sequence[Walk]], None]
"""Writes what is done for one tile, given by where each dimension's walk is, the outermost first."""


class Dimension:
    """A dimension that is cut into tiles of ``size``; the last one may be shorter. Counted in elements.

    Tiles that are ``unlike`` one another are written one by one, others in a loop.
    """

    def __init__(self, total: int, size: int, *, unlike: bool = False) -> None:
        self.size, self.unlike = size, unlike
        self.full, self.rest = divmod(total, size)
        self.tiles = self.full + (self.rest > 0)

    @property
    def nests(self) -> int:
        """How often what is nested in this dimension is written, beside the last time."""
        if self.unlike:
            return self.tiles - 1
        # in the loop over whole tiles, and before a shorter one
        return (self.full > 1) + (self.rest > 0 and self.full > 0)

    def at(self, number: int) -> Walk:
        """One tile."""
        width = self.size if number < self.full else self.rest
        return Walk(Segment(number * self.size, 1, width, number == 0, number == self.tiles - 1), STILL)

    def ends(self, *, last: bool) -> Walk:
        """The first tile, or the last one."""
        return self.at(self.tiles - 1 if last else 0)


class CutDimension(Dimension):
    """A dimension that is a tile of the one before it, which may be a shorter one."""


def _inside(dimensions: Sequence[Dimension], outer: Sequence[Walk]) -> Sequence[Dimension]:
    """Dimensions within tiles of the outer ones: one that cuts a tile is as long as that is."""
    if not dimensions or not outer or not isinstance(dimensions[0], CutDimension):
        return dimensions
    return [CutDimension(outer[-1].size, dimensions[0].size), *dimensions[1:]]


def _ends(dimensions: Sequence[Dimension], outer: Sequence[Walk], *, last: bool) -> list[Walk]:
    """Tiles of the outer dimensions, and of those within them the first ones, or the last ones."""
    walks = list(outer)
    for number in range(len(dimensions)):
        (here, *_) = _inside(dimensions[number:], walks)
        walks.append(here.ends(last=last))
    return walks


MOST_WRITTEN = 32
"""Tiles of a task that are written out, at most, where more of its dimensions would share a pipeline."""
LONG = 16
"""A pipeline of so many tiles hides all but a small part of how it begins and ends."""


def outside(
    sizes: Sequence[tuple[int, int]],
    parts: int = 1,
    most: int = MOST_WRITTEN,
    unlike: int | None = None,
    *,
    cut: bool = False,
) -> int:
    """How many of the outer dimensions are loops around pipelines, and not in one.

    Dimensions are taken in from the innermost one on, until pipelines are long, or too many tiles would be written out.

    Parameters
    ----------
    sizes
        As of `pipeline`.
    parts
        Nests of this kind that the task consists of.
    most
        Tiles that are written out at most, all parts together.
    unlike
        Number of the dimension whose tiles are unlike one another, which is in the pipeline.
    cut
        Whether the last dimension cuts the tiles of the one before it: both are in the pipeline then.
    """
    steps, written, last = 1, 0, len(sizes) - 1 - cut
    for number in reversed(range(len(sizes))):
        here = Dimension(*sizes[number], unlike=number == unlike)
        more = here.nests * (written + 1) + written
        full = steps >= LONG or parts * (more + 1) > most
        if here.tiles > 1 and full and number < last and (unlike is None or number < unlike):
            return number + 1
        steps, written = steps * here.tiles, more
    return 0


def pipeline(
    nest: Nest,
    sizes: Sequence[tuple[int, int]],
    head: Stage,
    tail: Stage,
    outer: int = 0,
    ended: Callable[[], None] = lambda: None,
    told: int | None = None,
    unlike: int | None = None,
    *,
    cut: bool = False,
) -> None:
    """Run two stages over the tiles of nested dimensions, ``head`` one tile ahead of ``tail``.

    ``head(0); loop {head(i + 1); tail(i)}; tail(last)``, where ``i + 1`` is the next tile in the order of the nest: the
    first one of the next outer tile follows the last one of this. A dimension's shorter last tile is unrolled. Where
    that would make a program long, ``outer`` of the dimensions are loops around pipelines, see `outside`; ``ended`` is
    called where one has ended. With ``told`` the head's last tile in the dimensions from that one on is written by
    itself, and knows that it is the last one.

    Parameters
    ----------
    sizes
        Elements of each dimension and of its tiles, the outermost dimension first.
    unlike
        Number of a dimension whose tiles are unlike one another; no loop goes over them.
    cut
        Whether the last dimension cuts the tiles of the one before it.
    """
    dimensions = [Dimension(*each, unlike=number == unlike) for number, each in enumerate(sizes)]
    if cut:
        dimensions[-1] = CutDimension(*sizes[-1])
    dimensions = dimensions[outer:]
    for walks in _walked(nest, sizes[:outer]):
        _run(nest, head, _ends(dimensions, walks, last=False))
        _steps(nest, dimensions, walks, head, tail, len(sizes) if told is None else told)
        _run(nest, tail, _ends(dimensions, walks, last=True))
        ended()


def _walked(nest: Nest, sizes: Sequence[tuple[int, int]]) -> Iterator[tuple[Walk, ...]]:
    """Loops over all tiles of nested dimensions."""
    if not sizes:
        yield ()
        return
    for walk in nest.walk(*sizes[0]):
        for inner in _walked(nest, sizes[1:]):
            yield walk, *inner


def _steps(
    nest: Nest, left: Sequence[Dimension], outer: Sequence[Walk], head: Stage, tail: Stage, told: int, last: bool = True
) -> None:
    """Every step from a tile to the next one while the outer dimensions stay where they are.

    They stay at their ``last`` tile, those from number ``told`` on.
    """
    if not left:
        return
    here, *inner = _inside(left, outer)
    counts = len(outer) >= told

    def turn(before: Walk, after: Walk) -> None:
        _steps(nest, inner, (*outer, before), head, tail, told, not counts)
        _run(nest, head, _ends(inner, (*outer, after), last=False))
        _run(nest, tail, _ends(inner, (*outer, before), last=True))

    if here.unlike:
        for number in range(here.tiles - 1):
            turn(here.at(number), here.at(number + 1))
        _steps(nest, inner, (*outer, here.at(here.tiles - 1)), head, tail, told, last or not counts)
        return
    steps = here.full - 1
    # the last step ends at the last tile of all that is told
    alone = counts and last and not here.rest and all(each.tiles == 1 for each in inner)
    for start, count in ((0, steps - 1), (steps - 1, 1)) if alone else ((0, steps),):
        if start >= 0 and count > 0:
            with nest.context.builder.loop(count) as loop:
                before = Walk(Segment(start * here.size, count, here.size, start == 0, False), loop)
                ends = not here.rest and start + count == steps
                turn(before, Walk(Segment((start + 1) * here.size, count, here.size, False, ends), loop))
    if here.rest and here.full:
        turn(here.at(here.full - 1), here.at(here.full))
    _steps(nest, inner, (*outer, here.at(here.tiles - 1)), head, tail, told, last or not counts)


def _run(nest: Nest, stage: Stage, walks: Sequence[Walk]) -> None:
    """Run a stage with its walks counted among the open loops, of which some are already."""
    counted = nest.walks
    nest.walks = [*counted, *(walk for walk in walks if walk not in counted)]
    stage(walks)
    nest.walks = counted


__all__ = ["MOST_WRITTEN", "Stage", "outside", "pipeline"]
