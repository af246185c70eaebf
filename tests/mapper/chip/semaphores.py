"""What a program leaves in its semaphores: who waits takes one, who posts or releases gives one."""

from collections import Counter

from siliconloom.arch.isa import Opcode


def left(program):
    """By how much each semaphore ends above its initial count, or below; nothing of those that end as they began.

    Every slot that is taken is given back and every one that is filled is emptied, so that none is in use twice: a
    task that waits for fewer slots than it gives back would let the next one write where it still reads.
    """
    net, counts = Counter(), []

    def times(mask):
        """How often the loops in the mask are in one turn of theirs."""
        product = 1
        for level, count in enumerate(counts):
            product *= 1 if mask >> level & 1 else count
        return product

    for i in program.instructions:
        if i.opcode == Opcode.LOOP:
            counts.append(i.m)
        elif i.opcode == Opcode.NEXT:
            counts.pop()
        else:
            taken = ((i.wait, -times(0)), (i.first_wait, -times(i.first)))
            given = ((i.release, times(0)), (i.post, times(0)), (i.last_post, times(i.last)))
            for mask, number in (*taken, *given):
                for bit, semaphore in enumerate(program.semaphores):
                    net[semaphore.name] += number if mask >> bit & 1 else 0
    return {name: number for name, number in net.items() if number}
