"""One rollout of a past pass, judged again: what was recorded of it beside what its bytes say today."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.defenses.duplicates import DuplicateMemory
from shoal.defenses.pointer import Pointer
from shoal.defenses.reputation import Reputation
from shoal.defenses.screen import Screened, ScreenMemory, screen
from shoal.defenses.verdict import Action, Counters, Verdict
from shoal.node.draw import LocalPrompts
from shoal.node.regrade import Regrader
from shoal.node.replay_findings import Findings, RolloutReplay
from shoal.node.sets import OwnSet, reward_of
from shoal.node.store.blobs import DamagedBlob, read_blob
from shoal.node.store.records import RolloutRecord, RowRecord
from shoal.node.store.samples import SampledSet
from shoal.node.store.settings import PassSettings
from shoal.node.wiring import screen_context
from shoal.protocol.envelope import Announcement, check_payload, verify_announcement
from shoal.protocol.errors import ProtocolError
from shoal.protocol.manifest import Manifest
from shoal.protocol.prompts import SCOPE_SHARED, SHARED
from shoal.protocol.wire import decode_rollout
from shoal.trainer.model import Policy
from shoal.trainer.verify import Grader

RECOMPUTED_LAYERS = ("header", "schema", "provenance", "text")  # of the screen: they judge by the bytes alone
REMEMBERED = "not recomputed: depends on what the node remembered"


@dataclass(frozen=True, slots=True)
class Bench:
    """What judges again: swarm, tasks and tokenizer of that day, and a verifier of today."""

    settings: PassSettings
    manifest: Manifest
    policy: Policy
    prompts: LocalPrompts
    grader: Grader
    blobs: Path

    def screen(self, pointer: Pointer, blob: bytes) -> Screened | Verdict:
        """Screen one rollout by the layers that need no memory."""
        counters = Counters()
        disabled = self.settings.defenses.disabled | {"duplicates", "reputation"}
        config = replace(self.settings.defenses, disabled=disabled)
        context = screen_context(self.prompts, self.policy, config)
        memory = ScreenMemory(DuplicateMemory(config, counters), Reputation(config, counters), counters)
        return screen(pointer, blob, context, memory)


def replay_own(bench: Bench, record: RolloutRecord, sampled: SampledSet | None) -> RolloutReplay:
    """Check an own set: announcement, payload, prompt and rewards; `sampled` is None when its samples are gone."""
    replay = RolloutReplay(record)
    found = replay.findings
    opened = _open(bench, record, found) if record.announcement is not None else None
    if record.place is None:
        return replay  # it was announced by a pass that failed later on: no update was made of it
    if sampled is None:
        found.note("samples", "gone", "token ids and log-probs")
        return replay
    texts = tuple(completion.text for completion in sampled.completions)
    if opened is not None:
        found.compare("texts", _published(opened[1]), texts)
    try:
        scope_key = SHARED if sampled.scope == SCOPE_SHARED else record.key
        derived, prompt = bench.prompts.at(record.round, scope_key, sampled.slot)
    except ProtocolError as error:
        found.note("prompt", "differs", str(sampled.derived), error.reason)
        return replay
    found.compare("prompt", sampled.derived, derived)
    found.compare("samples", _shown(_numbers(record.rows)), _shown(sampled.graded))
    scores = bench.grader.grade([(prompt, text) for text in texts])
    rewards = _rewards(found, record.rows, [reward_of(score) for score in scores])
    if len(rewards) == len(texts):
        replay.remade = OwnSet(derived, prompt, sampled.completions, rewards, sampled.policy_version, record.round)
    return replay


def replay_peer(bench: Bench, record: RolloutRecord) -> RolloutReplay:
    """Check a peer's rollout: signature, payload, operator, verdict and local rewards."""
    replay = RolloutReplay(record)
    if record.announcement is None and record.digest is None:
        replay.findings.note("payload", "gone", "unsigned", "nothing is kept of the bridge's sets")
        return replay
    opened = _open(bench, record, replay.findings)
    if opened is None:
        return replay
    announcement, blob = opened
    # None for one whose invite was remembered; that of an unlisted key follows from when and where it was seen
    operator = bench.manifest.operator_of(record.key)
    if operator not in (None, record.key.hex()) and bench.settings.defenses.on("admission"):
        replay.findings.compare("operator", record.operator, operator)
    pointer = Pointer(announcement, record.operator, record.received_round or 0, record.arrival or 0)
    screened = _verdict(replay.findings, record, bench.screen(pointer, blob))
    if screened is None:
        return replay
    verifies = bench.settings.defenses.on("verifier")
    regraded = Regrader(bench.prompts.registry, bench.grader, Counters(), verifies).regrade(pointer, screened)
    completions = regraded.completions
    kept = [record.rows[completion.row] for completion in completions]
    rewards = _rewards(replay.findings, kept, [completion.reward for completion in completions])
    weights = [completion.weight for completion in completions]
    replay.findings.compare("weights", _shown([row.weight for row in kept]), _shown(weights))
    pairs = zip(completions, rewards, strict=True)
    replay.remade = replace(regraded, completions=tuple(replace(one, reward=reward) for one, reward in pairs))
    return replay


def _open(bench: Bench, record: RolloutRecord, found: Findings) -> tuple[Announcement, bytes] | None:
    """Check announcement and payload; None when one of them is damaged or gone, so that nothing more can be said."""
    try:
        announcement = Announcement.decode(record.announcement or b"")
        verify_announcement(announcement)
    except ProtocolError as error:
        found.note("signature", "differs", "of its key", error.reason)
        return None
    found.note("signature", "equal", "of its key", "of its key")
    header = announcement.header
    name = header.payload_hash.hex()
    found.compare(
        "header",
        f"{record.key.hex()} {record.round} {record.policy_version} {record.sequence} {(record.digest or b'').hex()}",
        f"{header.key.hex()} {header.round} {header.policy_version} {header.sequence} {name}",
    )
    try:
        blob = read_blob(bench.blobs, header.payload_hash)
        if blob is not None:
            check_payload(header, blob)
    except (DamagedBlob, ProtocolError) as error:
        found.note("payload", "differs", name, str(error))
        return None
    found.note("payload", "gone" if blob is None else "equal", name, "evicted" if blob is None else name)
    return None if blob is None else (announcement, blob)


def _verdict(found: Findings, record: RolloutRecord, outcome: Screened | Verdict) -> Screened | None:
    """Compare verdicts; return what is to be regraded, with those rows refused that a memory had refused."""
    recorded = _said(record.action, record.layer, record.reason)
    if isinstance(outcome, Verdict):
        found.compare("verdict", recorded, _said(outcome.action, outcome.layer, outcome.reason))
        return None
    if record.action != Action.ACCEPT:
        refused = {(verdict.layer, verdict.reason) for verdict in outcome.verdicts if not verdict.usable}
        # Rows that a memory refused count towards the half that condemns a rollout; without them it may be less.
        remembered = record.layer not in RECOMPUTED_LAYERS or (record.layer, record.reason) in refused
        state = "recorded" if remembered and record.place is None else "differs"
        found.note("verdict", state, recorded, REMEMBERED if remembered else "accept")
        return None
    if len(record.rows) != len(outcome.verdicts):
        found.compare("verdict", f"accept {len(record.rows)} rows", f"accept {len(outcome.verdicts)} rows")
        return None
    verdicts = [_remembered(row) or now for row, now in zip(record.rows, outcome.verdicts, strict=True)]
    before = "; ".join([recorded, *(_said(row.action, row.layer, row.reason) for row in record.rows)])
    after = "; ".join([recorded, *(_said(one.action, one.layer, one.reason) for one in verdicts)])
    same = found.compare("verdict", before, after)
    count = sum(_remembered(row) is not None for row in record.rows)
    if count:
        found.note("verdict", "recorded", f"{count} rows", REMEMBERED)
    return replace(outcome, verdicts=tuple(verdicts)) if same else None


def _remembered(row: RowRecord) -> Verdict | None:
    """Return the recorded verdict on a row when no layer that judges by the bytes alone has given it."""
    if row.action == Action.ACCEPT or row.layer in RECOMPUTED_LAYERS:
        return None
    try:
        return Verdict(Action(row.action), row.layer, row.reason, row.weight)
    except ValueError:  # no action that a node writes
        return None


def _rewards(found: Findings, rows: Sequence[RowRecord], recomputed: Sequence[float]) -> tuple[float, ...]:
    """Compare rewards. Where the verifier gave none on one of the two days, that says nothing: the recorded one stands.

    Returns what the update is made again from; as many rewards as are worked out, or none when the ledger has others.
    """
    recorded = _numbers(rows)
    if len(recorded) != len(recomputed):
        found.compare("rewards", f"{len(recorded)} rewards", f"{len(recomputed)} rewards")
        return ()
    pairs = list(zip(recorded, recomputed, strict=True))
    taken = tuple(then if math.isnan(then) or math.isnan(now) else now for then, now in pairs)
    equal = found.compare("rewards", _shown(recorded), _shown(taken))
    if equal and _shown(recorded) != _shown(recomputed):
        found.note("rewards", "recorded", _shown(recorded), "the verifier gave none then or gives none now")
    return taken


def _published(blob: bytes) -> object:
    try:
        return decode_rollout(blob).completions
    except ProtocolError as error:
        return error.reason


def _numbers(rows: Sequence[RowRecord]) -> list[float]:
    return [math.nan if row.reward is None else row.reward for row in rows]


def _shown(numbers: Sequence[float]) -> str:
    return " ".join("none" if math.isnan(number) else repr(number) for number in numbers)


def _said(action: str, layer: str, reason: str) -> str:
    return f"{action!s} {layer}/{reason}" if layer else str(action)
