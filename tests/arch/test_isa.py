import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import DataType, LoomError
from siliconloom.arch.isa import (
    COMPUTES,
    TRANSFERS,
    UNIT_OF,
    Address,
    Instruction,
    Opcode,
    Program,
    Semaphore,
    Unit,
    decode,
    decode_program,
    encode,
)
from siliconloom.arch.listing import disassemble
from siliconloom.arch.opcodes import GATHERS
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import COMPUTE, GATHER, HEADER, LEVELS, SEMAPHORES, TRANSFER, WORD_BITS

END = Instruction(opcode=Opcode.END)


def bits(width):
    return st.integers(0, 2**width - 1)


def signed(width):
    return st.integers(-(2 ** (width - 1)), 2 ** (width - 1) - 1)


def addresses(base, stride, local):
    strides = st.tuples(*[signed(stride)] * LEVELS)
    if not local:
        return st.builds(Address, base=bits(base), strides=strides)
    return st.builds(Address, base=bits(base), strides=strides, slot=bits(base), parity=bits(LEVELS), odd=bits(1))


@st.composite
def instructions(draw):
    opcode = draw(st.sampled_from(tuple(Opcode)))
    fields = {f.name: draw(bits(f.width)) for f in HEADER[4:]}
    unit = draw(st.sampled_from(tuple(Unit))) if opcode == Opcode.BARRIER else UNIT_OF[opcode]
    if opcode in TRANSFERS or opcode in GATHERS:
        fields |= {
            "pitch": draw(bits(40)),
            "memory": draw(addresses(48, 40, False)),
            "a": draw(addresses(28, 28, True)),
        }
    if opcode in GATHERS:
        fields["b"] = draw(addresses(28, 28, True))
    if opcode in COMPUTES:
        fields |= {name: draw(addresses(28, 28, True)) for name in "abc"}
    return Instruction(
        opcode=opcode,
        unit=unit,
        dtype=draw(st.sampled_from(DataType)),
        function=draw(st.sampled_from(tuple(VectorFunction))),
        **fields,
    )


@given(instructions())
def test_decode_undoes_encode(instruction):
    word = encode(instruction)
    assert len(word) * 8 == WORD_BITS
    assert decode(word) == instruction


@given(st.binary(min_size=WORD_BITS // 8, max_size=WORD_BITS // 8))
def test_any_word_is_decoded_to_itself_or_refused(word):
    try:
        instruction = decode(word)
    except LoomError:
        return
    if instruction.opcode == Opcode.BARRIER or instruction.unit == UNIT_OF[instruction.opcode]:
        assert decode(encode(instruction)) == instruction


def test_every_format_fits_the_word():
    for layout in (HEADER + TRANSFER, HEADER + GATHER, HEADER + COMPUTE):
        assert sum(f.width for f in layout) <= WORD_BITS
        assert len({f.name for f in layout}) == len(layout)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"m": 2**24}, "m = 16777216 does not fit 24 bits"),
        ({"wait": 1 << SEMAPHORES}, "wait"),
        ({"a": Address(base=-1)}, r"a\.base = -1"),
        ({"a": Address(strides=(2**27, 0, 0, 0, 0, 0))}, r"a\.stride0"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(fields, rule):
    with pytest.raises(LoomError, match=rule):
        encode(Instruction(opcode=Opcode.MATMUL, **{"m": 1, "n": 1, "k": 1, **fields}))


def test_reserved_bits_and_unknown_codes_are_refused():
    with pytest.raises(LoomError, match="unknown opcode 31"):
        decode(b"\x1f" + bytes(255))
    with pytest.raises(LoomError, match="reserved bits"):
        decode(bytes(255) + b"\x80")
    with pytest.raises(LoomError, match="256 bytes"):
        decode(b"")
    with pytest.raises(LoomError, match="whole number"):
        decode_program(bytes(258))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=LEVELS), st.data())
def test_an_address_is_affine_with_an_alternating_slot(indices, data):
    strides = tuple(data.draw(st.integers(-100, 100)) for _ in range(LEVELS))
    parity = data.draw(bits(LEVELS))
    address = Address(base=1000, strides=strides, slot=4096, parity=parity, odd=data.draw(bits(1)))
    toggles = address.odd + sum(i for level, i in enumerate(indices) if parity >> level & 1)
    expected = 1000 + sum(i * s for i, s in zip(indices, strides, strict=False)) + toggles % 2 * 4096
    assert address.at(indices) == expected


def loop(count, *body):
    return (Instruction(opcode=Opcode.LOOP, m=count), *body, Instruction(opcode=Opcode.NEXT))


MATMUL = Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1)
LOAD = Instruction(opcode=Opcode.LOAD, m=1, n=1)


@pytest.mark.parametrize(
    ("body", "semaphores", "rule"),
    [
        ((), (), "ends with END"),
        ((Instruction(opcode=Opcode.LOOP, m=2), END), (), "1 loop is never closed"),
        ((Instruction(opcode=Opcode.NEXT), END), (), "instruction 0 .next.: illegal instruction: closes a loop"),
        ((END, MATMUL, END), (), "instruction 0 .end.: the program goes on"),
        ((Instruction(opcode=Opcode.LOOP, m=0), Instruction(opcode=Opcode.NEXT), END), (), "at least once"),
        ((Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=0), END), (), "k must be at least 1"),
        ((Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, wait=1), END), (), "semaphore 0 is not declared"),
        ((Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, first=1), END), (), "loop that is not open"),
        (
            (
                Instruction(opcode=Opcode.LOAD, m=1, n=1, post=1),
                Instruction(opcode=Opcode.STORE, m=1, n=1, post=1),
                END,
            ),
            (Semaphore("full"),),
            "semaphore full is posted by store here and posted by load at instruction 0",
        ),
        ((Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, operator=4), END), (), "operator 4 is not declared"),
        ((MATMUL, END), (Semaphore("deep", 5000),), "initial count"),
    ],
)
def test_an_illegal_program_is_refused_with_its_instruction(body, semaphores, rule):
    with pytest.raises(LoomError, match=rule):
        Program(body, semaphores)


def test_loops_may_not_nest_too_deeply():
    body = (MATMUL,)
    for _ in range(LEVELS):
        body = loop(2, *body)
    Program((*body, END))
    with pytest.raises(LoomError, match="nested more than 6 deep"):
        Program((*loop(2, *body), END))


def test_the_disassembler_shows_loops_shapes_and_semaphores():
    program = Program(
        (
            *loop(
                3,
                Instruction(opcode=Opcode.LOAD, m=2, n=64, post=1),
                Instruction(opcode=Opcode.MATMUL, m=4, n=5, k=6, wait=1),
            ),
            END,
        ),
        (Semaphore("full"),),
    )
    text = disassemble(program)
    assert text.splitlines()[0].endswith("loop 3")
    assert "load 2x64B" in text
    assert "matmul 4x5x6 int8" in text
    assert text.count("full") == 2
    assert len(text.splitlines()) == len(program.instructions)
    assert decode_program(program.encode()) == program.instructions
