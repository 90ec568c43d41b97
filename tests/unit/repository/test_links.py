"""Every link from one page to a file of the repository leads somewhere."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PAGES = sorted(
    path for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("examples/**/*.md")]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def targets(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link and not link.startswith("#")]


def test_there_are_pages_and_links() -> None:
    assert len(PAGES) > 10
    assert sum(len(targets(page)) for page in PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in targets(page) if not (page.parent / link).exists()] == []
