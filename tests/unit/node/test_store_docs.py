"""The page on the ledger names every table and column, and its queries run."""

import re
from pathlib import Path

import pytest

from shoal.node.store.schema import open_ledger

PAGE = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text(encoding="utf-8")
QUERIES = [
    query for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) for query in block.split(";") if query.strip()
]


def test_every_table_and_every_column_of_passes_and_rollouts_is_explained(tmp_path: Path) -> None:
    connection = open_ledger(tmp_path / "shoal.db")
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    names = {name for name in tables if not name.startswith("sqlite_")}
    for table in ("passes", "rollouts"):
        names |= {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}
    explained = set(re.findall(r"`(\w+)`", PAGE)) | set(re.findall(r"^### (\w+):", PAGE, re.MULTILINE))
    assert names <= explained, names - explained


@pytest.mark.parametrize("query", QUERIES)
def test_the_queries_run(tmp_path: Path, query: str) -> None:
    assert open_ledger(tmp_path / "shoal.db").execute(query).fetchall() == []
    assert len(QUERIES) > 4
