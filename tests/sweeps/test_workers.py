"""Workers that die: their questions go to others, and what kills every one of them has failed."""

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.sweeps.executors import KILLED, MOST_FRUITLESS, LocalProcesses
from siliconloom.sweeps.question import PointAnswer

DONE = PointAnswer({"time": 1.0})


class MortalPool:
    """A pool in which even questions wait for the next odd one, and all that waits dies with a deadly one."""

    def __init__(self, deadly):
        self.deadly, self.waiting, self.dead = deadly, [], False

    def submit(self, _, setting, question):
        assert setting is None
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
            return list(pool.answers((number, number) for number in range(count)))


@given(st.integers(1, 40), st.data())
def test_every_question_is_answered_once_and_only_deadly_ones_fail(count, data):
    deadly = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
    found = answered(count, deadly)
    assert sorted(number for number, _ in found) == list(range(count))
    assert {number for number, answer in found if answer is KILLED} == deadly


def test_workers_that_die_of_everything_end_the_sweep():
    with pytest.raises(LoomError, match="die before they answer anything"):
        answered(4 * MOST_FRUITLESS, set(range(4 * MOST_FRUITLESS)))
