"""Random legal programs and small random tiles, for hypothesis."""

from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import Chip
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Semaphore, Unit
from siliconloom.arch.vector import VectorFunction

FAR = 1 << 16
"""First address of the second memory level of a chip that has two."""
ADDRESSES = st.sampled_from([Address(base=0), Address(base=FAR + 64)])
UNITS = (Unit.LOAD, Unit.STORE, Unit.MATMUL, Unit.VECTOR)


@st.composite
def memories(draw, capacity):
    """A memory level, perhaps striped."""
    channels = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 3)]))
    return {
        "kind": "ddr4",
        "capacity": capacity,
        "bandwidth": draw(st.sampled_from(["7 GB/s", "32 GB/s"])),
        "latency": draw(st.sampled_from(["1 ns", "9 ns", "40 ns"])),
        "ports": channels[0],
        "devices": channels[1],
    }


@st.composite
def chips(draw):
    """A small NPU; times are short so that a run of every cycle stays cheap."""
    levels = draw(st.sampled_from([[("dram", "1 GiB")], [("near", "64 KiB"), ("far", "1 GiB")]]))
    dataflow = draw(st.sampled_from(["weight_stationary", "input_stationary", "output_stationary"]))
    load_rows = draw(st.sampled_from([1, 2])) if dataflow != "output_stationary" else 1
    chip = Chip.model_validate(
        {
            "kind": "chip",
            "name": "random",
            "clock": "1 GHz",
            "tile": {
                "kind": "npu",
                "array": {
                    "rows": draw(st.sampled_from([2, 4, 6])),
                    "cols": draw(st.integers(1, 5)),
                    "dataflow": dataflow,
                    "multiply_stages": draw(st.integers(0, 2)),
                    "add_stages": draw(st.integers(0, 2)) if dataflow != "output_stationary" else 0,
                    "load_rows": load_rows,
                    "load_port": "own" if dataflow == "output_stationary" else draw(st.sampled_from(["own", "shared"])),
                },
                "scratchpad": {"capacity": "16 KiB"},
                "accumulator": {"capacity": "4 KiB"},
                "vector": {
                    "lanes": draw(st.integers(1, 8)),
                    "sublanes": draw(st.sampled_from([1, 1, 2, 4])),
                    "latency": draw(st.integers(1, 5)),
                    "costs": draw(
                        st.sampled_from([{}, {"softmax": {"passes": 7, "row_cycles": 3}, "add": {"passes": 2}}])
                    ),
                },
                "dma": {"bytes_per_cycle": draw(st.sampled_from([8, 64])), "outstanding": draw(st.integers(1, 6))},
                "sequencer": {
                    "issue_cycles": draw(st.integers(1, 4)),
                    "loop_cycles": draw(st.integers(1, 2)),
                    "queue_depth": draw(st.integers(1, 4)),
                    "launch_cycles": draw(st.sampled_from([0, 0, 5, 40])),
                },
            },
            "memory": {name: draw(memories(capacity)) for name, capacity in levels},
        }
    )
    # a description has several stages in floating point alone, whose vector functions the reference does not know
    stages = {"accumulate_stages": draw(st.sampled_from([1, 1, 2, 4]))}
    if dataflow != "output_stationary":
        stages["unpack_stages"] = draw(st.sampled_from([0, 0, 1, 5]))
    array = chip.tile.array.model_copy(update=stages)
    return chip.model_copy(update={"tile": chip.tile.model_copy(update={"array": array})})


@st.composite
def programs(draw, *, iterations=4, deepest=3):
    """Loops of random instructions joined by semaphores, each from one unit to one other."""
    semaphores, ends = [], []
    for number in range(draw(st.integers(0, 5))):
        semaphores.append(
            Semaphore(f"s{number}", draw(st.integers(0, 3)), draw(st.sampled_from(["operands", "buffer"])))
        )
        ends.append((draw(st.sampled_from(UNITS)), draw(st.sampled_from(UNITS)), draw(st.booleans())))

    def mask(unit, side, release=None):
        bits = [b for b, end in enumerate(ends) if end[side] == unit and release in (None, end[2])]
        chosen = draw(st.lists(st.sampled_from(bits), unique=True)) if bits else []
        return sum(1 << b for b in chosen)

    def instruction(depth):
        unit = draw(st.sampled_from(UNITS))
        barrier = draw(st.integers(0, 5)) == 0
        opcode = (
            Opcode.BARRIER
            if barrier
            else {
                Unit.LOAD: draw(st.sampled_from([Opcode.LOAD, Opcode.GATHER])),
                Unit.STORE: Opcode.STORE,
                Unit.MATMUL: Opcode.MATMUL,
                Unit.VECTOR: Opcode.VECTOR,
            }[unit]
        )
        wide = unit in (Unit.LOAD, Unit.STORE)
        return Instruction(
            opcode=opcode,
            unit=unit,
            m=draw(st.integers(1, 3 if wide else 7)),
            n=draw(st.integers(1, 200 if wide else 12)),
            k=draw(st.integers(1, 9)),
            pitch=draw(st.sampled_from([0, 64, 200])),
            memory=draw(ADDRESSES),
            function=draw(st.sampled_from([VectorFunction.ADD, VectorFunction.SOFTMAX, VectorFunction.GELU])),
            wait=mask(unit, 1),
            post=mask(unit, 0, False),
            release=mask(unit, 0, True),
            first_wait=mask(unit, 1),
            last_post=mask(unit, 0, False),
            first=draw(st.integers(0, 2**depth - 1)),
            last=draw(st.integers(0, 2**depth - 1)),
        )

    def body(depth, most):
        made = []
        for _ in range(draw(st.integers(1, most))):
            if depth < deepest and draw(st.integers(0, 3)) == 0:
                made += [
                    Instruction(opcode=Opcode.LOOP, m=draw(st.integers(1, iterations))),
                    *body(depth + 1, 3),
                    Instruction(opcode=Opcode.NEXT),
                ]
            else:
                made.append(instruction(depth))
        return made

    return Program((*body(0, 6), Instruction(opcode=Opcode.END)), tuple(semaphores))


@st.composite
def pipelines(draw, *, iterations=70):
    """Programs shaped like a mapper's, which never deadlock: rings of buffers between units, in nested loops.

    Each ring has a producer and a consumer in the same loop body; a matmul may gather over a loop of its own and hand
    over when that loop ends.
    """
    semaphores = []

    def semaphore(initial, cause):
        semaphores.append(Semaphore(f"s{len(semaphores)}", initial, cause))
        return 1 << len(semaphores) - 1

    def work(operator, unit, **masks):
        opcode = {
            Unit.LOAD: draw(st.sampled_from([Opcode.LOAD, Opcode.GATHER])),
            Unit.STORE: Opcode.STORE,
            Unit.MATMUL: Opcode.MATMUL,
            Unit.VECTOR: Opcode.VECTOR,
        }[unit]
        wide = unit in (Unit.LOAD, Unit.STORE)
        return Instruction(
            opcode=opcode,
            unit=unit,
            m=draw(st.integers(1, 4 if wide else 9)),
            n=draw(st.integers(1, 300 if wide else 16)),
            k=draw(st.integers(1, 9)),
            pitch=64,
            memory=draw(ADDRESSES),
            function=draw(st.sampled_from([VectorFunction.ADD, VectorFunction.SOFTMAX])),
            operator=operator,
            **masks,
        )

    def loop(operator, inside):
        return [
            Instruction(opcode=Opcode.LOOP, m=draw(st.integers(1, iterations)), operator=operator),
            *inside,
            Instruction(opcode=Opcode.NEXT, operator=operator),
        ]

    def stage(operator, depth):
        """One chain of units over rings; the matmul's part may be a loop that gathers."""
        ring = [(semaphore(draw(st.integers(1, 3)), "buffer"), semaphore(0, "operands")) for _ in range(3)]
        gather = depth < 3 and draw(st.booleans())
        level = 1 << depth if gather else 0
        load = work(operator, Unit.LOAD, wait=ring[0][0], post=ring[0][1])
        product = work(
            operator,
            Unit.MATMUL,
            wait=ring[0][1],
            release=ring[0][0],
            first_wait=ring[1][0],
            first=level,
            last_post=ring[1][1],
            last=level,
        )
        inner = [load, product]
        if draw(st.booleans()):
            inner.insert(draw(st.integers(0, 2)), work(operator, draw(st.sampled_from(UNITS))))
        return [
            *(loop(operator, inner) if gather else inner),
            work(operator, Unit.VECTOR, wait=ring[1][1] | ring[2][0], release=ring[1][0], post=ring[2][1]),
            work(operator, Unit.STORE, wait=ring[2][1], release=ring[2][0]),
        ]

    program, stages = [], draw(st.integers(1, 3))
    for operator in range(stages):
        depth = draw(st.integers(1, 2))
        made = stage(operator, depth)
        for _ in range(depth):
            made = loop(operator, made)
        program += made
    if draw(st.booleans()):  # the stages once more for every layer; predicates then count one level further out
        program = [_deeper(i) for i in program]
        operator = 0
        program = [
            Instruction(opcode=Opcode.LOOP, m=draw(st.integers(1, 12))),
            *program,
            Instruction(opcode=Opcode.NEXT),
        ]
    names = tuple(f"o{n}" for n in range(stages))
    return Program((*program, Instruction(opcode=Opcode.END)), tuple(semaphores), names)


def _deeper(instruction):
    return replace(instruction, first=instruction.first << 1, last=instruction.last << 1)
