"""The page: complete in itself, the same bytes for the same run, and nothing in it acts."""

import json
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fake_run import EVIL, FakeRun

from shoal.node.report.page import flat, inert_lines, pick_samples, write_report
from shoal.protocol.errors import EnvironmentFault

VOID = {"meta", "path", "br", "use", "rect"}


class Page(HTMLParser):
    """Collects elements, attributes and text, and checks that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((name, value or "") for name, value in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((name, value or "") for name, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(FakeRun(tmp_path_factory.mktemp("run")).write()).read_text(encoding="utf-8")


def test_the_page_is_complete_in_itself(text: str) -> None:
    page = Page(text)
    assert not page.open
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    loaded = [value for name, value in page.attributes if name in {"src", "href", "xlink:href", "srcset", "data"}]
    assert all(value.startswith("#") for value in loaded)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not re.search(r"url\((?!#)|@import|https?://", text)


def test_ids_are_unique_and_every_reference_is_met(text: str) -> None:
    attributes = Page(text).attributes
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for name, value in attributes if name == "xlink:href"} <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_what_a_peer_wrote_is_shown_and_inert(text: str) -> None:
    shown = "".join(Page(text).texts)
    assert "<script>alert(1)</script>" in shown  # as text
    assert "<script" not in text
    assert "\\x1b[31mred" in shown
    assert "\\u202egnp.exe\\u200b" in shown
    hidden = {c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs"}} - {"\n", "\u2060"}
    assert not hidden


def test_every_text_of_a_run_is_inert_wherever_it_stands(tmp_path: Path) -> None:
    folder = FakeRun(tmp_path).write()
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evil = json.loads(json.dumps(metrics), object_hook=_poison)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in evil))
    page = write_report(folder).read_text(encoding="utf-8")
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def _poison(event: dict[str, Any]) -> dict[str, Any]:
    for name in ("version", "key", "attacker", "attack", "source", "task", "prompt", "completion", "verdict", "model"):
        if isinstance(event.get(name), str):
            event[name] += EVIL
    for name in ("by_task", "verdicts"):
        if name in event:
            event[name] = {key + EVIL: value for key, value in event[name].items()}
    if "skills" in event:
        event["skills"] = [skill + EVIL for skill in event["skills"]]
    return event


def test_a_lone_surrogate_does_not_stop_the_page(tmp_path: Path) -> None:
    folder = FakeRun(tmp_path).write()
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace("60laohs", "\\ud800laohs"))
    assert "\\ud800laohs" in write_report(folder).read_text(encoding="utf-8")


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = FakeRun(tmp_path).write()
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert not list(folder.glob("*.tmp"))


def test_it_shows_the_result_the_verdicts_and_the_options(text: str) -> None:
    shown = " ".join("".join(Page(text).texts).split())
    for words in (
        "The nodes learned more together than alone.",
        "control character",
        "quota",
        "Also counted",
        "attacker: text",
        "lag in updates",
        "mixing.peer_rows",
        "not scored",
    ):
        assert words in shown


def test_an_interrupted_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    folder = FakeRun(tmp_path).write(rounds_done=22, tail='{"event": "step", "arm"')
    shown = "".join(Page(write_report(folder).read_text(encoding="utf-8")).texts)
    assert "The run was stopped before its end" in shown
    assert "The last line of its record was cut off" in shown


@pytest.mark.parametrize("arms", [["swarm"], ["isolated"], ["isolated_total", "swarm"]])
def test_any_choice_of_arms_has_a_page(tmp_path: Path, arms: list[str]) -> None:
    run = FakeRun(tmp_path, nodes=1 if arms == ["isolated"] else 3, attackers=0, rounds=10)
    run.arms = arms
    Page(write_report(run.write()).read_text(encoding="utf-8"))


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    folder = FakeRun(tmp_path).write()
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().split("\n")[0] + "\n")
    (folder / "timings.jsonl").unlink()
    assert "Not enough was measured to tell." in write_report(folder).read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_one_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    folder = FakeRun(tmp_path).write()
    (folder / "report.html").mkdir()
    with pytest.raises(EnvironmentFault, match=r"report\.html cannot be written"):
        write_report(folder)
    assert not list(folder.glob("*.tmp"))


def test_a_long_text_is_cut_with_a_mark_and_keeps_its_lines() -> None:
    assert inert_lines("a\nb\x07") == "a\nb\\x07"
    assert inert_lines("\n".join("abcdefghijklmnop")).split("\n")[-2:] == ["l", "…"]
    assert len(inert_lines("x" * 10_000)) == 600


def test_samples_are_the_latest_of_each_kind(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    run.write()
    chosen = pick_samples([event for event in run.metrics if event["event"] == "sample"])
    kinds = [("own" if event["source"] == "own" else "peer", event["verdict"]) for event in chosen]
    assert kinds == [("own", "accept")] * 4 + [("peer", "accept")] * 4 + [("peer", "text/control_character")]
    assert chosen[0]["round"] == 60
    assert {event["arm"] for event in chosen} == {"swarm"}
    assert pick_samples([]) == []


def test_options_are_flattened() -> None:
    config = {"a": {"b": 1, "c": {"d": ["x", "y"]}}, "e": None, "f": [], "g": False}
    assert list(flat(config)) == [("a.b", "1"), ("a.c.d", "x, y"), ("e", "–"), ("f", "–"), ("g", "False")]
