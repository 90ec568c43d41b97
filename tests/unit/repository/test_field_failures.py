"""docs/field-failures.md names a test for each failure, and each test that it names is there."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "field-failures.md"
LINES = range(1, 39)
_NAME = re.compile(r"`(?P<file>test_\w+\.py)?(?:::(?P<test>test_\w+))?`")


def _rows() -> dict[int, str]:
    """The last column of each line of the table, by the line's number."""
    cells = [line.strip().strip("|").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    return {int(row[0]): row[-1] for row in cells if len(row) == 5 and row[0].strip().isdecimal()}


def _named(cell: str) -> list[tuple[str, str]]:
    """Files and functions in a cell, a function alone being of the file before it; "" is the whole file."""
    found: list[tuple[str, str]] = []
    for match in _NAME.finditer(cell):
        file = match["file"] or (found[-1][0] if found else "")
        found.append((file, match["test"] or ""))
    return found


def _faults(cell: str) -> list[str]:
    """What is wrong with the tests that a cell names."""
    faults = [] if _named(cell) else ["names no test"]
    for file, test in _named(cell):
        paths = list((REPOSITORY / "tests").rglob(file)) if file else []
        if len(paths) != 1:
            faults.append(f"{file or 'no file'} before ::{test}: {len(paths)} such files")
        elif test and not re.search(rf"^(async )?def {test}\(", paths[0].read_text(encoding="utf-8"), re.MULTILINE):
            faults.append(f"{file} has no {test}")
    return faults


def test_no_line_is_missing() -> None:
    assert list(_rows()) == list(LINES)
    assert "with the daemon" not in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("number", LINES)
def test_each_line_names_tests_that_exist(number: int) -> None:
    assert _faults(_rows()[number]) == []


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        ("the whole suite", "names no test"),
        ("`test_no_such_file.py::test_it`", "0 such files"),
        ("`::test_it`", "no file"),
        ("`test_field_failures.py::test_no_such_test`", "has no test_no_such_test"),
        ("`test_field_failures.py::test_no_line_is_missing`, `::test_none`", "has no test_none"),
    ],
)
def test_a_wrong_cell_is_found(cell: str, fault: str) -> None:
    assert any(fault in each for each in _faults(cell))
