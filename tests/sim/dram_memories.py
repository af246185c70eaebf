"""Random memories, mappings and controllers."""

from hypothesis import strategies as st

from siliconloom.arch.dram import FIELDS, dram_names, load_dram


@st.composite
def memories(draw):
    name = draw(st.sampled_from(dram_names()))
    parts = list(draw(st.permutations(FIELDS)))
    for split in draw(st.lists(st.sampled_from(["co1", "co2", "ro1", "ba1"]), max_size=2, unique_by=lambda p: p[:2])):
        parts.insert(draw(st.integers(0, len(parts))), split)
    order = "".join(parts)
    mixed = draw(st.sampled_from(["[]", "[]", "[ba^ro0]", "[ch^co0, bg^ro1, ba^ro2]", "[ra^ro3, bg^co1]"]))
    sets = [
        ("mapping", order),
        ("xor", mixed),
        ("controller.admission", draw(st.sampled_from(["channel", "shared"]))),
        ("controller.queues", draw(st.sampled_from(["bank", "shared"]))),
        ("organization.channels", str(draw(st.sampled_from([1, 2, 4])))),
        ("organization.ranks", str(draw(st.sampled_from([1, 2])))),
        ("organization.rows", "16"),
        ("controller.scheduler", draw(st.sampled_from(["fr_fcfs", "fcfs"]))),
        ("controller.page", draw(st.sampled_from(["open", "closed", "timeout", "auto_precharge"]))),
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
