"""Citations in source, tests and tools name a page and heading of the repository, or a document that
docs/design/kudu.md lists.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FILES = [
    path
    for folder in ("src", "tests", "tools", "bench", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".pyx", ".pxi", ".txt") and path != Path(__file__)
]
FILES += [ROOT / name for name in ("pyproject.toml", "Makefile", "hatch_build.py")]
PAGE = re.compile(r"\b((?:docs/[\w/-]+|ARCHITECTURE|CONTRIBUTING|README)\.md)((?:,? (?:and )?\"[^\"]+\")*)")
KUDU = re.compile(
    r"Kudu (tablet design|schema design|schema changes|column file design|compaction policy)"
    r"((?:,? (?:and |to )?\"[^\"]+\")*)"
)
# Names of documents that are not in this repository.
ABSENT = re.compile(
    r"[Dd]esign §|docs/decisions|\bdecision 0\d|\brecord 0\d|(?:shared|public) contract|Kudu facts|\bfacts \d"
    r"|data source study|ecosystem notes|shared design|\bseeds/"
)


@functools.cache
def headings(page: str) -> set[str]:
    lines = (ROOT / page).read_text().splitlines()
    return {line.lstrip("# ").replace("`", "") for line in lines if line.startswith("#")}


@functools.cache
def sections() -> dict[str, set[str]]:
    """Return the sections of each document of Kudu that may be cited."""
    rows = re.findall(
        r"^\| Kudu ([a-z ]+) \| [^|]+ \|([^|]*)\|$", (ROOT / "docs/design/kudu.md").read_text(), re.M
    )
    return {title: set(re.findall(r'"([^"]+)"', text)) for title, text in rows}


def cited(path: Path) -> str:
    """Return the file's text with comments and wrapped lines joined."""
    return re.sub(r"\s*\n\s*(?:# )?", " ", path.read_text())


def unresolved(text: str) -> list[str]:
    found = [match[0] for match in ABSENT.finditer(text)]
    for page, quoted in PAGE.findall(text):
        if not page.startswith("docs/design-docs/"):
            if not (ROOT / page).exists():
                found.append(page)
            else:
                names = re.findall(r'"([^"]+)"', quoted)
                found += [
                    f'{page}, "{name}"' for name in names if name.replace("`", "") not in headings(page)
                ]
    for title, quoted in KUDU.findall(text):
        names = re.findall(r'"([^"]+)"', quoted)
        found += [f'Kudu {title}, "{name}"' for name in names if name not in sections().get(title, set())]
    return found


def test_each_citation_names_an_existing_page_and_heading() -> None:
    assert {str(path.relative_to(ROOT)): found for path in FILES if (found := unresolved(cited(path)))} == {}


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_each_link_to_a_heading_is_valid() -> None:
    wrong = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text()):
            file = (page.parent / target).resolve() if target else page
            if anchor not in {slug(heading) for heading in headings(str(file.relative_to(ROOT)))}:
                wrong.append((page.name, f"{target}#{anchor}"))
    assert wrong == []


def test_rules_that_are_cited_by_number_are_on_their_page() -> None:
    known = set(re.findall(r"^\*\*([WRPHLTZ]\d):", (ROOT / "docs/design/rules.md").read_text(), re.M))
    missing = {}
    for path in FILES:
        labels = {
            label
            for match in re.finditer(
                r"docs/design/rules\.md, ((?:[WRPHLTZ]\d(?:, | and | to )?)+)", cited(path)
            )
            for label in re.findall(r"[WRPHLTZ]\d", match[1])
        }
        if labels - known:
            missing[str(path.relative_to(ROOT))] = sorted(labels - known)
    assert known and missing == {}


def test_wrong_citations_are_found() -> None:
    """This shows that the tests above do not pass on everything."""
    assert unresolved("Source: docs/design/no-such-page.md.") == ["docs/design/no-such-page.md"]
    assert unresolved('Source: docs/design/kudu.md, "Clock" and "Sundial".') == [
        'docs/design/kudu.md, "Sundial"'
    ]
    assert unresolved('Source: Kudu tablet design, "Overall picture".') == []
    assert unresolved('Source: Kudu tablet design, "Overall".') == ['Kudu tablet design, "Overall"']
    assert unresolved("Source: design §6.") == ["design §"]
