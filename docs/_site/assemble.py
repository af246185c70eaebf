"""Puts the pages of the site together: the documents as they are, and reference pages made from the code.

``python docs/_site/assemble.py FOLDER`` writes them to FOLDER, from which Sphinx builds the site. Links between
documents are those that hold in the repository: a link to a file outside of ``docs`` becomes one to a copy of it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).parent))

import reference  # beside this file, which is no package

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
SECTION = re.compile(r"^## (.*)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
OTHERS = "More pages"


def documents() -> list[Path]:
    """Every page that is written by hand, the index first."""
    index = DOCS / "index.md"
    pages = [p for p in sorted(DOCS.rglob("*.md")) if "_site" not in p.parts and p != index]
    return [index, *pages]


def rewritten(text: str, source: Path, place: PurePosixPath, target: Path) -> str:
    """A document's text with links that hold in the site.

    Parameters
    ----------
    text, source
        The document and where it stands in the repository.
    place
        Where the page stands in the site.
    target
        The folder that files outside of ``docs`` are copied to.

    Raises
    ------
    FileNotFoundError
        When a link leads nowhere.
    """

    def link(found: re.Match[str]) -> str:
        path, anchor = found[1], found[2] or ""
        there = Path(os.path.normpath(source.parent / path))
        if not there.exists():
            raise FileNotFoundError(f"{source.relative_to(ROOT)}: no file {path}")
        if there.is_relative_to(DOCS):
            to = PurePosixPath(there.relative_to(DOCS).as_posix())
        elif there == ROOT / "CHANGELOG.md":
            to = PurePosixPath("changelog.md")
        elif there.is_dir():
            to = PurePosixPath("files", there.relative_to(ROOT).as_posix() + ".txt")
            write(target / to, "\n".join(sorted(p.name for p in there.iterdir() if p.name[0] not in "_.")) + "\n")
        else:
            to = PurePosixPath("files", there.relative_to(ROOT).as_posix())
            to = to.with_name(to.name + ".txt") if to.suffix == ".md" else to
            (target / to).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(there, target / to)
        return os.path.relpath(to, place.parent) + anchor

    parts = FENCE.split(text)
    return "".join(part if number % 2 else LINK.sub(link, part) for number, part in enumerate(parts))


def write(path: Path, text: str) -> None:
    """Write a page with the folders that it stands in; one that is so already keeps its time, for Sphinx's sake."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def sections(index: str) -> dict[str, list[str]]:
    """The pages that each section of the index links to, in order: the site's navigation."""
    found = {}
    for section in SECTION.finditer(index):
        links = [m[1].replace("../CHANGELOG.md", "changelog.md") for m in LINK.finditer(section[2])]
        pages = [page for page in links if page.endswith(".md") and not page.startswith("../")]
        found[section[1]] = list(dict.fromkeys(pages))
    return found


def navigation(index: str, pages: list[str]) -> str:
    """Trees of pages as Sphinx wants them; pages that the index does not name come last."""
    trees = sections(index)
    named = {page for each in trees.values() for page in each}
    left = [page for page in pages if page not in named and page != "index.md"]
    if left:
        trees[OTHERS] = left
    text = ""
    for caption, entries in trees.items():
        if entries:
            lines = "\n".join(entry.removesuffix(".md") for entry in entries)
            text += f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n:maxdepth: 1\n\n{lines}\n```\n"
    return text


def assemble(target: Path, papers: bool = True) -> list[str]:
    """Write all pages of the site below ``target``; returns where they stand.

    Parameters
    ----------
    papers
        Whether published results are derived again for the gallery (half a minute); without, it has their names only.
    """
    made = reference.pages(ROOT, papers=papers)
    pages = [p.relative_to(DOCS).as_posix() for p in documents()] + ["changelog.md", *made]
    for place, text in made.items():
        write(target / place, text)
    for source in documents():
        place = PurePosixPath(source.relative_to(DOCS).as_posix())
        text = source.read_text(encoding="utf-8")
        if place.name == "index.md" and len(place.parts) == 1:
            for page in made:  # their links hold in the site alone
                text = text.replace(f"`{page}`", f"[{reference.title_of(made[page])}]({page})")
            tree = navigation(text, pages)
            text = FENCE.sub("", text)
            write(target / place, index_links(text, source, place, target, made) + tree)
        else:
            write(target / place, rewritten(text, source, place, target))
    shutil.copytree(DOCS / "images", target / "images", dirs_exist_ok=True)
    changes = ROOT / "CHANGELOG.md"
    write(
        target / "changelog.md", rewritten(changes.read_text(encoding="utf-8"), changes, PurePosixPath("x.md"), target)
    )
    for stale in target.rglob("*.md"):
        if stale.relative_to(target).as_posix() not in pages:
            stale.unlink()
    return pages


def index_links(text: str, source: Path, place: PurePosixPath, target: Path, made: dict[str, str]) -> str:
    """The index with links that hold in the site, those to pages that are made there as they are."""
    kept = LINK.sub(lambda found: found[0] if found[1] not in made else f"made:{found[1]}", text)
    parts = re.split(r"\]\(made:([^)]*)\)", kept)
    return "".join(
        f"]({part})" if number % 2 else rewritten(part, source, place, target) for number, part in enumerate(parts)
    )


if __name__ == "__main__":
    names = assemble(Path(sys.argv[1]), papers="--no-papers" not in sys.argv)
    print(f"{len(names)} pages")
