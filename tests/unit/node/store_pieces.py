"""Passes of a node without a network, for tests of its ledger."""

from pathlib import Path
from typing import Any

from node_pieces import identity, own_set, peer_set, pointer, prompt

from shoal.defenses.config import DefenseConfig
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import ACCEPTED, Verdict, reject
from shoal.node.config import Mixing
from shoal.node.events import RoundResult
from shoal.node.mix import Mixer
from shoal.node.sets import OwnSet, PeerSet
from shoal.node.stopwatch import Stopwatch
from shoal.node.store.facts import own_records, pass_record, peer_records
from shoal.node.store.ledger import PassFacts, Store
from shoal.node.store.settings import PassSettings
from shoal.node.witness import PassNotes
from shoal.protocol.envelope import PROTOCOL_VERSION, Header, Kind, payload_hash, seal
from shoal.protocol.staleness import Clock, LagClock
from shoal.trainer.algorithm import RECIPES
from shoal.trainer.model import Policy
from shoal.trainer.step import StepReport

KEY = identity(0).key
SETTINGS = PassSettings("", "default", True, "aa", "bb", 128, Mixing(), 1.0, RECIPES["grpo"], DefenseConfig())
TEXTS, REWARDS = ["cba", "x"], [1.0, 0.0]


def open_store(path: Path, **options: Any) -> Store:
    return Store(path, **({"now": lambda: 5_000.0} | options))


def announcement(own: OwnSet, blob: bytes, sequence: int, version: int = 3) -> bytes:
    owner = identity(0)
    header = Header(
        kind=Kind.ROLLOUT,
        version=PROTOCOL_VERSION,
        swarm_id=bytes(32),
        key=owner.key,
        round=own.round,
        policy_version=version,
        prompt_hash=own.prompt_hash,
        sequence=sequence,
        payload_length=len(blob),
        payload_hash=payload_hash(blob),
    )
    return seal(owner, header).encode()


def screened_set(node: int, sequence: int = 0, verdicts: tuple[Verdict, ...] = ()) -> tuple[Screened, PeerSet]:
    peer = peer_set(node, prompt(1), TEXTS, REWARDS, sequence)
    return Screened(peer.pointer, None, None, verdicts or (ACCEPTED,) * len(TEXTS)), peer  # type: ignore[arg-type]


def a_pass(policy: Policy, round: int = 0, number: int = 1) -> tuple[RoundResult, PassNotes]:
    """One own set that was published, one set of peer 5 that was used, one of peer 6 that was refused."""
    own = own_set(policy, prompt(2), TEXTS, REWARDS)
    own = OwnSet(own.derived, own.prompt, own.completions, own.rewards, own.policy_version, round)
    notes = PassNotes()
    blob = b"own %d" % round
    notes.published(own, announcement(own, blob, round), blob)
    screened, peer = screened_set(5, round)
    notes.fetched(peer.pointer, b"\0", screened, peer)
    notes.fetched(pointer(6, round), b"\0", reject("text", "too_long"), None)
    lags = LagClock()
    lags.began(0, 0)
    mixed = Mixer(Mixing(), policy, Clock(lambda: round * 60.0, 0, 60), lags, 1.0).mix([own], [peer])
    report = StepReport(True, "", 4, advantages=[0.5, -0.5] * 2, weights=[1.0] * 4, trained=[True, True, True, False])
    counts = {"header/stale": 2, "screen/accepted": 1}
    return RoundResult(round, number, [own], [peer], mixed, report, Stopwatch(), counts), notes


def facts(result: RoundResult, notes: PassNotes, settings: PassSettings = SETTINGS) -> PassFacts:
    rollouts = own_records(result, notes, KEY) + peer_records(result, notes)
    return PassFacts(pass_record(result, None), rollouts, settings, result.counts)
