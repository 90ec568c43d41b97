"""The report: complete in itself, peers' words inert, and nothing made up for what was not run."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fake_run import EVIL
from test_redteam_results import result

from shoal.node.redteam.blocks import share
from shoal.node.redteam.cells import NO_ATTACK, Cell
from shoal.node.redteam.matrix import Choice, chosen
from shoal.node.redteam.page import plain_cell, write_report
from shoal.node.redteam.results import Results
from shoal.node.report.intervals import wilson

PLAN = chosen(Choice(attacks=("text", "flood"), ablate=("likelihood",), shares=(0, 25)))


def some_results() -> Results:
    timing = {name: {"seconds": 1.0, "p50": 0.01, "p95": 0.02, "passes": 9} for name in ("update", "screen")}
    samples = [{"prompt": EVIL, "completion": f"| {EVIL} | [x](javascript:alert(1)) `code`"}]
    rows = [["honest", True, True, "accept", 9, 9.0], ["attacker", True, False, "reject likelihood/tail", 3, 0.0]]
    more: dict[str, Any] = {"timing": timing, "samples": samples, "rows": rows, "verdicts": {"quota/rollouts": 2}}
    more["accuracy"] = {"0": [[0, 0.1, 128], [100, 0.5, 128]]}
    hits = {"off": 370, "full": 0, "no-likelihood": 90}
    there = [cell for cell in PLAN if cell.attack != "flood"]
    return Results([result(cell, hits[cell.defenses] if cell.share else 0, **more) for cell in there], PLAN)


class Seen(HTMLParser):
    """Collects tags with their attributes, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_needs_nothing_else_and_runs_nothing(tmp_path: Path) -> None:
    text = write_report(some_results(), tmp_path).read_text(encoding="utf-8")
    seen = Seen()
    seen.feed(text)
    names = {tag for tag, _ in seen.tags}
    assert not names & {"script", "img", "iframe", "link", "object", "a"}
    for _, attributes in seen.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert all((attributes.get(name) or "#").startswith("#") for name in ("href", "xlink:href", "src"))
    assert "default-src 'none'" in text
    assert names >= {"svg", "table"}
    assert not any(bad in text for bad in ("\x1b", "\u202e", "\u200b"))


def test_markdown_holds_peers_words_in_their_cells(tmp_path: Path) -> None:
    write_report(some_results(), tmp_path)
    text = (tmp_path / "redteam.md").read_text(encoding="utf-8")
    rows = [line for line in text.split("\n") if "alert(1)" in line]
    assert rows
    heads = "| layers | prompt | answer of an honest node at the end |"
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == heads.count("|")
        assert "<" not in row
        assert "\\`code\\`" in row
        assert "](javascript" not in row.replace("\\]", "")


def test_what_was_not_run_is_empty_and_named(tmp_path: Path) -> None:
    write_report(some_results(), tmp_path)
    text = (tmp_path / "redteam.md").read_text(encoding="utf-8")
    assert "| code at 25 %: answers that show it | 1 % over the control |  |  |" in text
    missing = next(line for line in text.split("\n") if line.startswith("| 0 |"))
    assert "vertical flood 25 % off" in missing
    assert "text" not in missing


def test_figures_come_with_what_was_expected_and_the_verdict(tmp_path: Path) -> None:
    write_report(some_results(), tmp_path)
    text = (tmp_path / "redteam.md").read_text(encoding="utf-8")
    row = next(line for line in text.split("\n") if line.startswith("| text | 25 %") and "likelihood:" in line)
    assert "96.4 % (94.0–97.8)" in row
    assert "0 of 384 (at most 0.99 %)" in row
    assert row.endswith("| 1 | met |")
    assert "all but likelihood, 25 % | 23.4 % (19.5–27.9) | 1 |" in text


def test_curves_are_files_of_their_own_and_old_ones_go(tmp_path: Path) -> None:
    curves = tmp_path / "curves"
    curves.mkdir()
    (curves / "gone.svg").write_text("<svg/>")
    write_report(some_results(), tmp_path)
    assert [path.name for path in curves.iterdir()] == ["vertical-text-25.svg"]
    text = (curves / "vertical-text-25.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "var(--" not in text
    assert "(curves/vertical-text-25.svg)" in (tmp_path / "redteam.md").read_text(encoding="utf-8")


def test_an_empty_matrix_has_a_report_too(tmp_path: Path) -> None:
    text = write_report(Results([], PLAN), tmp_path).read_text(encoding="utf-8")
    assert f"0 of {len(PLAN)} cells run" in text


def test_real_and_synthetic_models_are_told_apart(tmp_path: Path) -> None:
    cells = [Cell(NO_ATTACK, 0, 0, "full"), Cell(NO_ATTACK, 0, 0, "full", model="models/real")]
    write_report(Results([result(cell) for cell in cells], cells), tmp_path)
    text = (tmp_path / "redteam.md").read_text(encoding="utf-8")
    assert text.index("synthetic: the built-in model") < text.index("real: models/real")


def test_a_share_of_none_is_its_upper_bound() -> None:
    assert share(wilson(0, 384)) == "0 of 384 (at most 0.99 %)"
    assert share(wilson(1, 4)) == "25.0 % (4.6–69.9)"
    assert share(None) == ""


def test_cells_of_a_table_cannot_be_left() -> None:
    assert plain_cell("a|b\nc") == r"a\|b\\x0ac"
    assert plain_cell("a\\|b") == r"a\\\|b"
    assert plain_cell("<b>") == "&lt;b&gt;"
