"""A past update made again from the ledger and its blobs: the same rollouts, verdicts, rewards, rows and advantages.

What needs the weights of that day (loss, log-probs) and what the node remembered then (copies, reputation, quotas,
staleness) is taken as recorded, and said to be so.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from shoal.node.draw import LocalPrompts
from shoal.node.loop import cap_operators
from shoal.node.mix import Mixed, Mixer
from shoal.node.replay_findings import Findings, PassReplay, RolloutReplay
from shoal.node.replay_rollouts import Bench, replay_own, replay_peer
from shoal.node.sets import OwnSet, PeerSet
from shoal.node.store.blobs import read_blob
from shoal.node.store.digests import advantages_hash, inputs_hash, selection_hash
from shoal.node.store.reader import LedgerReader
from shoal.node.store.records import PassRecord
from shoal.node.store.samples import SampledSet, unpack_samples
from shoal.node.store.settings import PassSettings
from shoal.protocol.errors import EnvironmentFault, ProtocolError, UsageError
from shoal.protocol.manifest import Manifest
from shoal.protocol.staleness import Clock, LagClock
from shoal.trainer.batch import Row
from shoal.trainer.model import load_policy, model_folder
from shoal.trainer.selection import Selection, select
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

WEIGHTS_OF_THAT_DAY = "not recomputed: depends on the weights of that day"


class Replayer:
    """Replays passes of one ledger; use it as a context, since it holds verifier processes."""

    def __init__(self, ledger: LedgerReader, blobs: Path, model: str | None = None) -> None:
        """`model` is `default` or the folder where the base model lies now, when that is not where the ledger says."""
        self.ledger = ledger
        self.blobs = blobs
        self.model = model
        self._benches: dict[int, Bench] = {}

    def __enter__(self) -> "Replayer":
        return self

    def __exit__(self, *_: object) -> None:
        for bench in self._benches.values():
            bench.grader.close()

    def replay(self, done: PassRecord) -> PassReplay:
        """Make one pass again and compare. Raises UsageError or EnvironmentFault when the tools for it are missing."""
        bench = self._bench(done.settings_id)
        records = self.ledger.rollouts(done.id)
        findings = Findings()
        samples = self._samples(done, findings)
        rollouts: list[RolloutReplay] = []
        for record in records:
            if record.own:
                known = record.place is not None and record.place < len(samples)
                rollouts.append(replay_own(bench, record, samples[record.place or 0] if known else None))
            else:
                rollouts.append(replay_peer(bench, record))
        replay = PassReplay(done, rollouts, findings)
        _update(bench, replay)
        return replay

    def _samples(self, done: PassRecord, findings: Findings) -> list[SampledSet]:
        if done.samples is None:
            return []
        try:
            packed = read_blob(self.blobs, done.samples)
            if packed is not None:
                return unpack_samples(packed)
        except EnvironmentFault as error:
            findings.note("samples", "differs", done.samples.hex(), str(error))
            return []
        findings.note("samples", "gone", done.samples.hex(), "evicted")
        return []

    def _bench(self, settings_id: int) -> Bench:
        """Return the tools for passes with these settings; loading a model takes a while, so they are kept."""
        if settings_id not in self._benches:
            self._benches[settings_id] = make_bench(self.ledger.settings(settings_id), self.blobs, self.model)
        return self._benches[settings_id]


def make_bench(settings_json: str, blobs: Path, model: str | None = None) -> Bench:
    """Load what judges passes with these settings again.

    Raises EnvironmentFault for a missing model or damaged settings, UsageError for a model with another tokenizer, a
    manifest that its founder did not sign, or a task that is not installed.
    """
    try:
        settings = msgspec.json.decode(settings_json, type=PassSettings)
    except msgspec.MsgspecError as error:
        raise EnvironmentFault(f"the settings of a pass are damaged: {error}") from error
    manifest = Manifest.from_toml(settings.manifest)
    try:
        manifest.verify()
    except ProtocolError as error:
        raise UsageError(f"the manifest in the ledger is not signed by its founder ({error.reason})") from error
    registry = TaskRegistry(manifest.tasks)
    name = model or settings.model
    policy = load_policy(model_folder(name), template=settings.template)
    if policy.tokenizer_hash.hex() != settings.tokenizer:
        raise UsageError(
            f"the model {name} has another tokenizer than the one of these passes: "
            "give the folder of the base model with --model"
        )
    return Bench(settings, manifest, policy, LocalPrompts(manifest, registry), Grader(registry), blobs)


def _update(bench: Bench, replay: PassReplay) -> None:
    """Mix, hash and take advantages again, if every set that was handed to the mixer could be made again."""
    done, findings = replay.done, replay.findings
    placed = sorted((r for r in replay.rollouts if r.record.place is not None), key=lambda r: r.record.place or 0)
    if any(rollout.remade is None for rollout in placed):
        differs = any(r.remade is None and r.findings.having("differs") for r in placed)
        findings.note("inputs", "differs" if differs else "gone", done.inputs_hash.hex(), "cannot be made again")
        return
    own = [rollout.remade for rollout in placed if isinstance(rollout.remade, OwnSet)]
    peers = [rollout.remade for rollout in placed if isinstance(rollout.remade, PeerSet)]
    mixed = _mixer(bench, placed).mix(own, peers)
    findings.compare("own sets", done.own_sets, mixed.own_sets)
    findings.compare("peer sets", done.peer_sets, mixed.peer_sets)
    findings.compare("rows", done.used_rows, len(mixed.rows))
    findings.compare("inputs", done.inputs_hash.hex(), inputs_hash(mixed.rows).hex())
    findings.compare("versions", done.version_after, done.version_before + done.signal)
    _compare_advantages(bench, replay, placed, mixed)
    alarm = done.report.get("canary")
    if alarm:  # weights are never replayed, but who compares them between passes must know why they changed
        back = "kept" if alarm["back_to"] is None else f"those of version {alarm['back_to']}"
        findings.note("weights", "recorded", f"canary alarm ({alarm['kind']}): {back}", WEIGHTS_OF_THAT_DAY)


def _compare_advantages(bench: Bench, replay: PassReplay, placed: Sequence[RolloutReplay], mixed: Mixed) -> None:
    done, findings, settings = replay.done, replay.findings, bench.settings
    trained = [False] * len(mixed.rows)
    if done.advantages_hash is not None and mixed.rows:
        chosen = _select(settings, mixed.rows)
        findings.compare("advantages", done.advantages_hash.hex(), advantages_hash(chosen.advantages_B.tolist()).hex())
        reported = [bool(trains) for trains in done.report.get("trained", [])]
        trained = chosen.train_B.tolist()
        if settings.algorithm.peer_rows == "likely":
            findings.note("selection", "recorded", f"{sum(reported)} rows trained", WEIGHTS_OF_THAT_DAY)
            trained = reported
        else:
            selection = selection_hash(trained, chosen.weight_B.tolist())
            findings.compare("selection", (done.selection_hash or b"").hex(), selection.hex())
    for rollout in placed:
        rows = [at for at, origin in enumerate(mixed.origins) if origin is rollout.remade]
        count = sum(trained[at] for at in rows) if done.signal else 0
        record = rollout.record
        recorded = f"{record.used_rows} used, {record.trained_rows} trained"
        rollout.findings.compare("rows", recorded, f"{len(rows)} used, {count} trained")


def _select(settings: PassSettings, rows: Sequence[Row]) -> Selection:
    """Take advantages as the trainer did; mean log-probs are asked for only where the selection is not compared."""

    def fits(row: Row) -> bool:
        return bool(row.prompt_ids) and bool(row.completion_ids) and row.total_length <= settings.max_length

    share = settings.mixing.external / max(1, settings.mixing.local)
    cap = partial(cap_operators, share=share) if settings.defenses.on("mixing") else None
    return select(rows, settings.algorithm, fits, lambda asked: [0.0] * len(asked), cap)


class _RecordedLags(LagClock):
    """The lags of one moment, by the round from which they count."""

    def __init__(self, lags: dict[int, int]) -> None:
        super().__init__()
        self._known = lags

    def lag(self, round: int, updates: int) -> int:  # noqa: ARG002 (the signature of the real one)
        """Return the recorded lag."""
        return self._known.get(round, 0)


def _mixer(bench: Bench, placed: Sequence[RolloutReplay]) -> Mixer:
    """Return the mixer at the moment of the update: swarm time and lags are what the used rollouts say."""
    used = [r.record for r in placed if not r.record.own and r.record.used_rows]
    moment = max((record.round + record.age for record in used), default=0)
    lags = _RecordedLags({record.round: record.lag or 0 for record in used})
    settings = bench.settings
    clock = Clock(lambda: float(moment), 0, 1)  # rounds of one second: the present round is `moment`
    fair = settings.defenses.on("mixing")
    return Mixer(settings.mixing, bench.policy, clock, lags, settings.temperature, fair)
