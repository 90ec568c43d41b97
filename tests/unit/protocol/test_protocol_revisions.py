"""Which revision of a manifest is in force when."""

from typing import Any

import msgspec
import pytest

from shoal.protocol.errors import ProtocolError, UsageError
from shoal.protocol.manifest import Manifest, SwarmLimits
from shoal.protocol.revisions import MAX_PENDING, RevisionLine


def revision(manifest: Manifest, number: int, effective: int, **fields: Any) -> Manifest:
    return msgspec.structs.replace(manifest, revision=number, effective_round=effective, **fields)


def in_force(line: RevisionLine, *rounds: int) -> list[int]:
    return [line.at(round).revision for round in rounds]


def test_a_revision_is_in_force_from_its_round_on(manifest: Manifest):
    line = RevisionLine(manifest)
    assert line.add(revision(manifest, 1, 10))
    assert line.newest.revision == 1
    assert in_force(line, 0, 9, 10, 11) == [0, 0, 1, 1]


def test_a_clock_that_steps_back_brings_no_old_revision_back(manifest: Manifest):
    line = RevisionLine(manifest)
    line.add(revision(manifest, 1, 10))
    assert in_force(line, 10, 5) == [1, 1]


def test_the_first_one_is_in_force_whatever_its_round(manifest: Manifest):
    """Who joins between signing and effect knows no earlier one."""
    assert in_force(RevisionLine(revision(manifest, 3, 100)), 5) == [3]


def test_one_that_comes_late_is_in_force_at_once(manifest: Manifest):
    line = RevisionLine(manifest)
    line.add(revision(manifest, 2, 10))
    assert in_force(line, 500) == [2]


def test_a_later_revision_with_an_earlier_round_overtakes(manifest: Manifest):
    line = RevisionLine(manifest)
    line.add(revision(manifest, 1, 20))
    line.add(revision(manifest, 2, 10))
    assert in_force(line, 9, 10, 20) == [0, 2, 2]


def test_several_wait_for_their_rounds(manifest: Manifest):
    line = RevisionLine(manifest)
    for number, effective in ((1, 10), (2, 20), (4, 40)):
        line.add(revision(manifest, number, effective))
    assert in_force(line, 9, 10, 25, 40) == [0, 1, 2, 4]


def test_old_and_known_ones_change_nothing(manifest: Manifest):
    line = RevisionLine(revision(manifest, 3, 0))
    assert not line.add(revision(manifest, 3, 0))
    assert not line.add(manifest)  # a rollback
    assert line.newest.revision == 3


def test_two_manifests_under_one_number_are_a_conflict_and_the_first_stays(manifest: Manifest):
    line = RevisionLine(manifest)
    line.add(revision(manifest, 1, 10))
    with pytest.raises(ProtocolError, match="manifest_conflict"):
        line.add(revision(manifest, 1, 10, limits=SwarmLimits(max_lag=1)))
    assert line.newest.limits == SwarmLimits()
    assert line.add(revision(manifest, 2, 10))


def test_what_cannot_follow_is_refused(manifest: Manifest):
    line = RevisionLine(manifest)
    for fields in ({"name": "other"}, {"round_seconds": 5}):
        with pytest.raises(UsageError):
            line.add(revision(manifest, 1, 10, **fields))
    assert line.newest.revision == 0


def test_what_waits_is_bounded(manifest: Manifest):
    line = RevisionLine(manifest)
    for number in range(1, MAX_PENDING + 1):
        line.add(revision(manifest, number, number))
    with pytest.raises(ProtocolError, match="too_many_revisions"):
        line.add(revision(manifest, MAX_PENDING + 1, 100))
    line.at(1)
    assert line.add(revision(manifest, MAX_PENDING + 1, 100))
