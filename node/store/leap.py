"""Moving a ledger's counters on, for an identity that may have been in use elsewhere."""

from contextlib import closing
from pathlib import Path

from shoal.node.store.schema import faults, open_ledger, transaction

MILLISECONDS = 1000


def leap(path: Path, now: float) -> None:
    """Raise sequence numbers and published versions to what a new ledger begins with; they never fall.

    `now` is in seconds since 1970. Without this an identity that comes back to an older ledger would go on below the
    numbers which it has used elsewhere since, and its peers would drop all that it shares as old. Raises
    EnvironmentFault for a ledger that cannot be used.
    """
    start = int(now * MILLISECONDS)
    with faults(path), closing(open_ledger(path)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            connection.execute("UPDATE sequence SET end = max(end, ?)", (start,))
            connection.execute("UPDATE position SET version = max(version, ?)", (start,))
