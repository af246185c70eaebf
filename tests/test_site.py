"""The site of the documents: every page has a place, links hold, and reference pages say what the code says."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "_site"
pytestmark = pytest.mark.checkout


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        return loaded("assemble")


@pytest.fixture(scope="module")
def built(site, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    return folder, site.assemble(folder, papers=False)


def test_the_index_names_only_pages_that_there_are(site, built):
    folder, pages = built
    named = [
        page for each in site.sections((folder / "index.md").read_text(encoding="utf-8")).values() for page in each
    ]
    assert len(named) == len(set(named))
    assert set(named) <= set(pages)
    text = (folder / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`([\w/-]+\.md)`", text)) == set(), "made pages that the index names and nobody makes"


def test_every_page_has_a_place_in_the_navigation(built):
    folder, pages = built
    text = (folder / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```\{toctree\}\n(?::.*\n)+\n((?:.+\n)+)```", text)
    shown = [line for tree in trees for line in tree.split()]
    assert sorted(shown) == sorted(page.removesuffix(".md") for page in pages if page != "index.md")


def test_links_of_all_pages_hold(site, built):
    folder, pages = built
    for page in pages:
        text = (folder / page).read_text(encoding="utf-8")
        for link in site.LINK.finditer("".join(site.FENCE.split(text)[::2])):
            assert (folder / page).parent.joinpath(link[1]).exists(), f"{page}: {link[1]}"


def test_a_link_that_leads_nowhere_is_refused(site, tmp_path):
    page = ROOT / "docs" / "timing.md"
    with pytest.raises(FileNotFoundError, match=r"docs/timing\.md: no file gone\.md"):
        site.rewritten("[a](gone.md#b)", page, site.PurePosixPath("timing.md"), tmp_path)
    assert site.rewritten("```\n[a](gone.md)\n```", page, site.PurePosixPath("timing.md"), tmp_path)


def test_links_lead_from_where_the_page_stands(site, tmp_path):
    page = ROOT / "docs" / "tutorials" / "architect.md"
    place = site.PurePosixPath("tutorials/architect.md")
    text = "[a](../timing.md#x) [b](../../CHANGELOG.md) [c](../../examples/custom_chip.py) [d](../../arch/library/gpu)"
    assert site.rewritten(text, page, place, tmp_path) == (
        "[a](../timing.md#x) [b](../changelog.md) [c](../files/examples/custom_chip.py) "
        "[d](../files/arch/library/gpu.txt)"
    )
    assert "h100.yaml" in (tmp_path / "files/arch/library/gpu.txt").read_text().split()


def test_every_command_and_every_key_has_its_place(built):
    from siliconloom.commands.group import COMMANDS
    from siliconloom.evaluate.schemas import KINDS, schema_of

    folder, _ = built
    text = (folder / "reference" / "commands.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"## loom {name}\n" in text
        module = importlib.import_module(f"siliconloom.commands.{name}")
        assert all(line in text for line in module.EXAMPLES)
    for kind in KINDS:
        text = (folder / "reference" / f"schema-{kind}.md").read_text(encoding="utf-8")
        whole = schema_of(kind)
        for each in (whole, *whole.get("$defs", {}).values()):
            for key in each.get("properties", {}):
                assert f"| `{key}` |" in text, (kind, key)


def test_a_key_is_shown_with_its_range_unit_default_and_meaning(site):
    shown = site.reference._object(
        {
            "properties": {
                "rows": {"type": "integer", "minimum": 1, "maximum": 8, "default": 2, "description": "a|b <c>"},
                "clock": {"type": "string", "examples": ["1 GHz"]},
            },
            "required": ["clock"],
        },
        "chip",
        "",
    )
    assert "| `rows` | integer | at least 1, at most 8 | `2` | a\\|b &lt;c> |" in shown
    assert "| `clock` | text | such as `1 GHz` | required |  |" in shown


def test_pages_of_the_library_and_of_python_name_everything(built):
    import siliconloom
    from siliconloom.arch.names import chip_names, gpu_names
    from siliconloom.workloads.names import workload_names

    folder, _ = built
    library = (folder / "reference" / "library.md").read_text(encoding="utf-8")
    for name in (*chip_names(), *gpu_names(), *workload_names()):
        assert f"| {name} |" in library
    api = (folder / "reference" / "api.md").read_text(encoding="utf-8")
    assert all(f"## {name}\n" in api for name in siliconloom.__all__ if name[0] != "_")


@pytest.mark.slow
def test_sphinx_builds_the_site_without_a_warning(built, tmp_path):
    if not all(importlib.util.find_spec(name) for name in ("sphinx", "myst_parser", "furo")):
        pytest.skip("the extra [docs] is not installed")
    folder, pages = built
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", str(SITE), str(folder), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / page).with_suffix(".html").exists() for page in pages)
