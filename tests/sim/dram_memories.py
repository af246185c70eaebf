"""Random memories, mappings and controllers."""

from hypothesis import strategies as st

from siliconloom.arch.dram import FIELDS, dram_names, load_dram


@st.composite
def memories(draw):
    name = draw(st.sampled_from(dram_names()))
    order = "".join(draw(st.permutations(FIELDS)))
    sets = [
        ("mapping", order),
        ("organization.channels", str(draw(st.sampled_from([1, 2, 4])))),
        ("organization.ranks", str(draw(st.sampled_from([1, 2])))),
        ("organization.rows", "16"),
        ("controller.scheduler", draw(st.sampled_from(["fr_fcfs", "fcfs"]))),
        ("controller.page", draw(st.sampled_from(["open", "closed", "timeout"]))),
        ("controller.timeout", str(draw(st.sampled_from([1, 20, 200])))),
        ("controller.read_queue", str(draw(st.integers(1, 40)))),
        ("controller.write_queue", str(draw(st.integers(9, 40)))),
        ("controller.bank_queue", str(draw(st.integers(1, 9)))),
        ("controller.row_hits", str(draw(st.integers(1, 9)))),
        ("controller.refresh", draw(st.sampled_from(["none", "rank", "bank"]))),
        ("controller.two_commands", draw(st.sampled_from(["true", "false"]))),
        ("timing.tREFI", str(draw(st.sampled_from([2000, 9000])))),
    ]
    return load_dram(name, sets)
