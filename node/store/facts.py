"""From what a pass brought forth to the records of the ledger. Pure: no clock, no disk."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from shoal.defenses.pointer import Pointer
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import Verdict
from shoal.node.events import RoundResult, mean_reward
from shoal.node.sets import OwnSet, PeerSet
from shoal.node.store.digests import advantages_hash, inputs_hash, selection_hash
from shoal.node.store.records import OWN, PassRecord, RolloutRecord, RowRecord
from shoal.node.witness import Fetched, PassNotes, Published
from shoal.protocol.envelope import Announcement, payload_hash
from shoal.trainer.batch import Row


@dataclass(frozen=True, slots=True)
class Used:
    """What became of one set in the mix: its rows that were mixed, how many of them trained, and their age and lag."""

    rows: Sequence[Row]
    trained: int


NOT_USED = Used((), 0)


def pass_record(result: RoundResult, samples: bytes | None) -> PassRecord:
    """Return the record of a pass whose own sets lie under the digest `samples`; times and ids are the ledger's."""
    report, rows = result.report, result.mixed.rows
    numbers = asdict(report)
    return PassRecord(
        id=0,
        round=result.round,
        number=result.passes,
        version_before=report.version - report.signal,  # an update with signal is one version, however many steps
        version_after=report.version,
        started=None,
        ended=0.0,
        settings_id=0,
        signal=report.signal,
        note=report.reason,
        reward=mean_reward(result.own),
        own_sets=result.mixed.own_sets,
        peer_sets=result.mixed.peer_sets,
        used_rows=len(rows),
        trained_rows=sum(report.trained) if report.signal else 0,
        report={name: _plain(value) for name, value in numbers.items()}
        | ({} if result.alarm is None else {"canary": dict(result.alarm)}),
        seconds=dict(result.watch.seconds),
        samples=samples,
        inputs_hash=inputs_hash(rows),
        advantages_hash=advantages_hash(report.advantages) if report.advantages else None,
        selection_hash=selection_hash(report.trained, report.weights) if report.advantages else None,
    )


def own_records(result: RoundResult, notes: PassNotes, key: bytes) -> list[RolloutRecord]:
    """Return one record for each own set that was sampled, and one for each further announcement that went out.

    The latter are of a pass that failed after publishing, or second announcements of one set.
    """
    used = _used_by_set(result)
    first: dict[int, Published] = {}
    for published in notes.out:
        first.setdefault(id(published.own), published)
    records = [
        _own(own, first.get(id(own)), key, (place, used.get(id(own), NOT_USED))) for place, own in enumerate(result.own)
    ]
    told = {record.announcement for record in records}
    rest = [published for published in notes.out if published.announcement not in told]
    return records + [_own(published.own, published, key, (None, NOT_USED)) for published in rest]


def peer_records(result: RoundResult, notes: PassNotes) -> list[RolloutRecord]:
    """Return one record for each rollout that was fetched, in the order of fetching, then those of the unsigned lane.

    Raises ValueError for a set of a peer that nobody took note of: its blob would be missing.
    """
    used = _used_by_set(result)
    places = {id(peer): place for place, peer in enumerate(result.peers)}
    records = [
        _peer(fetched, result.round, places.get(id(fetched.peer)), used.get(id(fetched.peer), NOT_USED))
        for fetched in notes.came
    ]
    unsigned = [peer for peer in result.peers if not isinstance(peer.pointer, Pointer)]
    records += [_unsigned(peer, result.round, places[id(peer)], used.get(id(peer), NOT_USED)) for peer in unsigned]
    if len(places) != sum(record.place is not None for record in records):
        raise ValueError("a peer's set has no note of its fetching: the witness is not attached to the gatherer")
    return records


def _used_by_set(result: RoundResult) -> dict[int, Used]:
    """Return the rows of each set that was mixed, by the set's identity: equal sets are still two."""
    report, mixed = result.report, result.mixed
    trained = report.trained if report.signal else [False] * len(mixed.rows)
    rows: dict[int, list[Row]] = {}
    counts: dict[int, int] = {}
    for row, origin, trains in zip(mixed.rows, mixed.origins, trained, strict=True):
        rows.setdefault(id(origin), []).append(row)
        counts[id(origin)] = counts.get(id(origin), 0) + trains
    return {name: Used(found, counts[name]) for name, found in rows.items()}


def _own(own: OwnSet, published: Published | None, key: bytes, mixed: tuple[int | None, Used]) -> RolloutRecord:
    header = Announcement.decode(published.announcement).header if published else None
    place, used = mixed
    return RolloutRecord(
        own=True,
        place=place,
        announcement=published.announcement if published else None,
        digest=payload_hash(published.blob) if published else None,
        bytes=len(published.blob) if published else 0,
        key=key,
        operator="",
        round=own.round,
        policy_version=header.policy_version if header else own.policy_version,
        sequence=header.sequence if header else None,
        received_round=None,
        arrival=None,
        age=0,
        lag=0,
        action=OWN,
        layer="",
        reason="",
        rows=tuple(RowRecord(OWN, reward=_reward(reward)) for reward in own.rewards),
        used_rows=len(used.rows),
        trained_rows=used.trained,
    )


def _peer(fetched: Fetched, round: int, place: int | None, used: Used) -> RolloutRecord:
    pointer, verdict = fetched.pointer, _verdict(fetched.screened)
    header = pointer.announcement.header
    return RolloutRecord(
        own=False,
        place=place,
        announcement=pointer.announcement.encode(),
        digest=pointer.digest,
        bytes=len(fetched.blob),
        key=pointer.key,
        operator=pointer.operator,
        round=pointer.round,
        policy_version=header.policy_version,
        sequence=pointer.sequence,
        received_round=pointer.received_round,
        arrival=pointer.arrival,
        age=used.rows[0].age if used.rows else round - pointer.round,
        lag=used.rows[0].lag if used.rows else None,
        action=verdict[0],
        layer=verdict[1],
        reason=verdict[2],
        rows=_rows(fetched.screened, fetched.peer),
        used_rows=len(used.rows),
        trained_rows=used.trained,
    )


def _unsigned(peer: PeerSet, round: int, place: int, used: Used) -> RolloutRecord:
    """Return the record of a set of the unsigned lane: there is no announcement, and no blob is kept."""
    source = peer.pointer
    return RolloutRecord(
        own=False,
        place=place,
        announcement=None,
        digest=None,
        bytes=0,
        key=source.key,
        operator=source.operator,
        round=source.round,
        policy_version=source.policy_version,
        sequence=None,
        received_round=source.received_round,
        arrival=None,
        age=used.rows[0].age if used.rows else round - source.round,
        lag=used.rows[0].lag if used.rows else None,
        action="accept",
        layer="",
        reason="",
        rows=tuple(RowRecord("accept", reward=_reward(one.reward), weight=one.weight) for one in peer.completions),
        used_rows=len(used.rows),
        trained_rows=used.trained,
    )


def _verdict(screened: Screened | Verdict) -> tuple[str, str, str]:
    if isinstance(screened, Verdict):
        return screened.action.value, screened.layer, screened.reason
    return "accept", "", ""


def _rows(screened: Screened | Verdict, peer: PeerSet | None) -> tuple[RowRecord, ...]:
    """Return the verdict on each completion with its local reward; none when the rollout was refused as a whole."""
    if isinstance(screened, Verdict):
        return ()
    rewards = {completion.row: completion.reward for completion in peer.completions} if peer else {}
    return tuple(
        RowRecord(verdict.action.value, verdict.layer, verdict.reason, _reward(rewards.get(row)), verdict.weight)
        for row, verdict in enumerate(screened.verdicts)
    )


def _reward(reward: float | None) -> float | None:
    return None if reward is None or math.isnan(reward) else reward


def _plain(value: object) -> object:
    """Return a number that JSON can say: what is not finite becomes None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
