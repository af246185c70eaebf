"""Workers that die: their questions go to others, and what kills every one of them has failed."""

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.sweeps.executors import KILLED, MOST_FRUITLESS, LocalProcesses
from siliconloom.sweeps.likeness import Shares, in_groups, likeness
from siliconloom.sweeps.question import PointAnswer

DONE = PointAnswer({"time": 1.0})


class MortalPool:
    """A pool in which even questions wait for the next odd one, and all that waits dies with a deadly one."""

    def __init__(self, deadly):
        self.deadly, self.waiting, self.dead = deadly, [], False

    def submit(self, _, setting, sets):
        assert setting is None
        question = int(sets[0][1])
        if self.dead:
            raise BrokenProcessPool("dead")
        future = Future()
        self.waiting.append(future)
        if question in self.deadly:
            self.dead = True
            self._end(lambda each: each.set_exception(BrokenProcessPool("died")))
        elif question % 2 or question < 0 or len(self.waiting) == 1:
            self._end(lambda each: each.set_result(DONE))
        return future

    def _end(self, with_it):
        for each in self.waiting:
            with_it(each)
        self.waiting.clear()

    def shutdown(self, **_):
        return None


def answered(count, deadly):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcesses, "_started", lambda self: MortalPool(deadly))
        with LocalProcesses(None, 2) as pool:
            return list(pool.answers((number, (("key", str(number)),)) for number in range(count)))


@given(st.integers(1, 40), st.data())
def test_every_question_is_answered_once_and_only_deadly_ones_fail(count, data):
    deadly = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
    found = answered(count, deadly)
    assert sorted(number for number, _ in found) == list(range(count))
    assert {number for number, answer in found if answer is KILLED} == deadly


def test_workers_that_die_of_everything_end_the_sweep():
    with pytest.raises(LoomError, match="die before they answer anything"):
        answered(4 * MOST_FRUITLESS, set(range(4 * MOST_FRUITLESS)))


KEYS = ("tile.array.rows", "tile.scratchpad.capacity", "memory.dram.bandwidth", "clock", "memory.dram.latency")
POINTS = st.lists(st.tuples(*(st.integers(0, 2) for _ in KEYS)), max_size=60, unique=True)


@given(POINTS, st.integers(1, 4), st.randoms())
def test_every_question_goes_to_one_worker_and_those_that_are_alike_to_few(points, workers, random):
    """A worker goes on with what it has begun, and one without any takes what nobody began, or a half of another's."""
    sets = [tuple(zip(KEYS, map(str, point), strict=True)) for point in points]
    questions = in_groups(enumerate(sets))
    assert sorted(questions) == list(enumerate(sets))
    kinds = {likeness(each)[0] for each in sets}
    shares, left = Shares(questions, workers), set(range(len(points)))
    last, begun = {}, set()
    while left:
        worker = random.randrange(workers)
        number, found = shares.following(worker)
        left.remove(number)
        alike = likeness(found)[0]
        if last.get(worker) != alike:
            assert alike not in begun or begun == kinds
        begun.add(alike)
        last[worker] = alike
    assert all(shares.following(worker) is None for worker in range(workers))


def test_points_that_differ_in_pace_alone_and_then_in_buffers_follow_one_another():
    keys = ("clock", "tile.array.rows", "tile.scratchpad.capacity")
    points = ["1 8 2", "1 16 1", "1 8 1", "2 8 2", "2 16 1"]
    questions = [(number, tuple(zip(keys, each.split(), strict=True))) for number, each in enumerate(points)]
    assert [number for number, _ in in_groups(questions)] == [0, 3, 2, 1, 4]
