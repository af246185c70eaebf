import pytest

from siliconloom.arch import DescriptionError, Document, LoomError, load_chip
from siliconloom.arch.description import LIBRARY
from siliconloom.arch.document import MAX_BYTES, find_file, parse_assignments

CHIP = """\
kind: chip
name: tiny
clock: 1 GHz
tile:
  kind: systolic
  array: {rows: 4, cols: 4, dataflow: weight_stationary}
"""


def load(tmp_path, text, overrides=()):
    path = tmp_path / "chip.yaml"
    path.write_text(text)
    return load_chip(str(path), list(overrides))


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("rows: 4", "rwos: 4", "6:17", ["tile.array.rwos", "unknown key", "did you mean 'rows'"]),
        ("rows: 4", "rows: -4", "6:17", ["tile.array.rows", "greater than or equal to 1", "-4"]),
        ("rows: 4", "rows: 99999999", "6:17", ["tile.array.rows", "less than or equal to 1024"]),
        ("rows: 4", "rows: four", "6:17", ["tile.array.rows", "integer"]),
        ("1 GHz", "1 GB", "3:8", ["clock", "unknown unit 'GB'"]),
        ("1 GHz", "5", "3:8", ["clock", "no unit"]),
        ("weight_stationary", "weight_stationry", "6:39", ["tile.array.dataflow", "did you mean 'weight_stationary'"]),
        ("kind: systolic", "kind: systolik", "5:9", ["tile.kind", "did you mean 'systolic'"]),
        ("kind: systolic", "knid: systolic", "5:9", ["kind"]),
        ("clock: 1 GHz\n", "", "1:1", ["clock", "missing"]),
        ("name: tiny", "name: tiny\nname: again", "3:1", ["given twice"]),
        ("kind: chip", "kind: gemms", "1:7", ["must be one of chip", "gemms"]),
        ("kind: chip", "kind: [", "3:6", ["not valid YAML"]),
        ("  array: {rows: 4, cols: 4, dataflow: weight_stationary}\n", "  array: 7\n", "6:10", ["mapping"]),
        ("cols: 4", "cols: 4, load_rows: 3", "6:40", ["load_rows: must divide rows: 3 does not divide 4, 1 does"]),
        ("cols: 4", "cols: 4, operands: [int7]", "6:40", ["int8"]),
    ],
)
def test_an_error_points_at_the_offending_value(tmp_path, old, new, place, words):
    assert old in CHIP
    with pytest.raises(DescriptionError) as caught:
        load(tmp_path, CHIP.replace(old, new, 1))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{tmp_path / 'chip.yaml'}:{place}: ")
    for word in words:
        assert word in text


def test_overrides_reach_any_depth_and_new_keys(tmp_path):
    chip = load(
        tmp_path,
        CHIP,
        [
            ("tile.array.rows", "7"),
            ("memory.far.kind", "ddr5"),
            ("memory.far.capacity", "1 GiB"),
            ("memory.far.bandwidth", "1 GB/s"),
            ("memory.far.latency", "1 us"),
        ],
    )
    assert chip.tile.array.rows == 7
    assert chip.memory["far"].bandwidth == 10**9


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("tile.array.rowz", "7", ["--set tile.array.rowz=7", "did you mean 'rows'"]),
        ("tile..rows", "7", ["single dots"]),
        ("name.first", "7", ["single value"]),
        ("clock", "[", ["not valid YAML"]),
        ("tile.array.operands.3", "int8", ["--set"]),
    ],
)
def test_a_bad_override_names_itself(tmp_path, path, value, words):
    with pytest.raises(LoomError) as caught:
        load(tmp_path, CHIP, [(path, value)])
    for word in words:
        assert word in str(caught.value)


def test_assignments_need_an_equals_sign():
    assert parse_assignments(["a.b=c=d", "x="]) == [("a.b", "c=d"), ("x", "")]
    with pytest.raises(LoomError, match=r"--set nonsense: must look like path\.to\.key=value"):
        parse_assignments(["nonsense"])


@pytest.mark.slow(seconds=1)
def test_an_alias_bomb_is_refused_quickly():
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for this, last in zip("bcdefghij", "abcdefghi", strict=True):
        bomb += f"{this}: &{this} [{', '.join(['*' + last] * 9)}]\n"
    with pytest.raises(DescriptionError, match="expands to more than"):
        Document.parse(bomb)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "empty"),
        ("- 1\n- 2\n", "must be a mapping"),
        ("42", "must be a mapping"),
        ("a: [1, 2", "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]", "not valid YAML"),
        ("? [a]\n: 1", "plain text"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
        ("x: {<<: {a: 1}}", "merge keys"),
        ("a: &a [*a]", "not valid YAML|nested|expands"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_yaml_of_another_shape_is_one_clear_line(text, rule):
    with pytest.raises(DescriptionError, match=rule) as caught:
        Document.parse(text, "file.yaml")
    assert "\n" not in str(caught.value)


def test_deep_nesting_is_refused():
    with pytest.raises(DescriptionError, match="nested"):
        Document.parse("a: " + "[" * 5000 + "]" * 5000)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(LoomError, match=r"nowhere\.yaml: no such file"):
        find_file("nowhere.yaml", LIBRARY, "chip")
    with pytest.raises(LoomError, match="did you mean 'npu-edge'"):
        find_file("npu-egde", LIBRARY, "chip")
    with pytest.raises(LoomError, match="is a folder"):
        Document.load(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(LoomError, match="not UTF-8"):
        Document.load(binary)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"a: " + b"x" * MAX_BYTES)
    with pytest.raises(LoomError, match="more than a YAML file may have"):
        Document.load(large)


@pytest.mark.parametrize("text", ["1e-05", "2E3", "-1.5e+3", "0.25e1"])
def test_a_number_with_an_exponent_is_one_as_json_writes_it(text):
    """To YAML 1.1 these are text: a model's configuration with `"rms_norm_eps": 1e-05` was refused."""
    assert Document.parse(f'{{"a": {text}, "b": "{text}"}}').data == {"a": float(text), "b": text}
