"""Workers that die: their questions go to others, and what kills every one of them has failed."""

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.sweeps import executors
from siliconloom.sweeps.executors import KILLED, MOST_FRUITLESS, LocalProcesses
from siliconloom.sweeps.likeness import Shares, in_groups, likeness
from siliconloom.sweeps.question import PointAnswer

DONE = PointAnswer({"time": 1.0})


class MortalPool:
    """One process: it answers a question when it is asked the next but one, or when nobody else asks, and may die.

    It dies of ``deadly`` questions whenever it begins with them, and once of each of ``killed``, as of a kill -9.
    """

    def __init__(self, deadly, killed, late):
        self.deadly, self.killed, self.late = deadly, killed, late
        self.waiting, self.dead, self.begun = [], False, []

    def submit(self, _, setting, sets):
        assert setting is None
        if self.dead:
            raise BrokenProcessPool("dead")
        future = Future()
        self.waiting.append((int(sets[0][1]), future))
        if len(self.waiting) > self.late:
            self.work()
        return future

    def work(self):
        """Answer the first question, or die of it with all that wait."""
        question, future = self.waiting.pop(0)
        self.begun.append(question)
        if question not in self.deadly and question not in self.killed:
            future.set_result(DONE)
            return
        self.killed.discard(question)
        self.dead = True
        for each in (future, *(each for _, each in self.waiting)):
            each.set_exception(BrokenProcessPool("died"))
        self.waiting.clear()

    def shutdown(self, **_):
        return None


def answered(count, deadly, killed=(), workers=2):
    """Answers of two workers, and what each of their processes began with."""
    pools, killed = [], set(killed)

    def started(self):
        pools.append(MortalPool(deadly, killed, len(pools) % 4))
        return pools[-1]

    def waited(futures, return_when):
        while not any(future.done() for future in futures):
            next(pool for pool in pools if pool.waiting).work()
        return {future for future in futures if future.done()}, set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcesses, "_started", started)
        patch.setattr(executors, "wait", waited)
        with LocalProcesses(None, workers) as pool:
            found = list(pool.answers((number, (("key", str(number)),)) for number in range(count)))
    return found, pools


@given(st.integers(1, 40), st.integers(1, 3), st.data())
def test_every_question_is_answered_once_and_only_deadly_ones_fail(count, workers, data):
    """Those that a process dies of whenever it begins with them; not those that waited, nor were killed once."""
    some = st.sets(st.integers(0, count - 1), max_size=2)
    deadly = data.draw(some)
    found, pools = answered(count, deadly, data.draw(some) - deadly, workers)
    assert sorted(number for number, _ in found) == list(range(count))
    assert {number for number, answer in found if answer is KILLED} == deadly
    for number in deadly:
        assert sum(number in pool.begun for pool in pools) == 2


def test_workers_that_die_of_everything_end_the_sweep():
    with pytest.raises(LoomError, match="die before they answer anything"):
        answered(4 * MOST_FRUITLESS, set(range(4 * MOST_FRUITLESS)))


def test_workers_that_die_now_and_then_do_not():
    count = 12 * MOST_FRUITLESS
    found, _ = answered(count, set(), set(range(0, count, 4)))
    assert len(found) == count
    assert all(answer is DONE for _, answer in found)


def test_questions_that_kill_one_after_the_other_fail_and_the_others_are_answered():
    count = 6 * MOST_FRUITLESS
    deadly = set(range(MOST_FRUITLESS, count - 1))
    found, _ = answered(count, deadly, workers=1)
    assert {number for number, answer in found if answer is KILLED} == deadly
    assert {number for number, answer in found if answer is DONE} == set(range(count)) - deadly


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


def test_a_worker_without_any_takes_the_last_half_of_what_another_one_has_left():
    questions = [(number, (("clock", str(number)),)) for number in range(9)]
    shares = Shares(questions, 2)
    assert shares.following(0)[0] == 0
    assert [shares.following(1)[0] for _ in range(4)] == [5, 6, 7, 8]
    assert [shares.following(0)[0] for _ in range(3)] == [1, 2, 3]
    assert shares.following(1)[0] == 4
    assert shares.following(0) is shares.following(1) is None
