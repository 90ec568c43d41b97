"""A laboratory for attacks: honest and malicious publishers before one receiver, without network, model or clock."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from shoal.defenses.attacks.base import Outgoing
from shoal.defenses.config import DefenseConfig
from shoal.defenses.duplicates import DuplicateMemory
from shoal.defenses.gate import Gate, GateContext
from shoal.defenses.pointer import Held, Pointer
from shoal.defenses.provenance import RebuiltPrompt
from shoal.defenses.screen import ScreenContext, Screened, ScreenMemory, screen
from shoal.defenses.verdict import Counters, Verdict
from shoal.protocol.envelope import PROTOCOL_VERSION, Header, Kind, payload_hash, seal
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import Admission, Manifest, SwarmLimits, TaskEntry
from shoal.protocol.prompts import SHARED, derive_prompt, resolve
from shoal.protocol.staleness import Clock
from shoal.protocol.wire import FINISH_EOS, PromptName, Rollout, SamplerSettings, encode_rollout, pack_floats

LINEAGE = bytes([1]) * 32
TOKENIZER = bytes([2]) * 32
MAX_CHARS = 2000


class Laboratory:
    """A swarm of `peers` keys, and nobody else; peer i belongs to `operators[i]` (None: each to one of its own).

    `now` is the time in seconds, rounds last 10; `lag` is the receiver's updates since any round began. With `mode`
    "open" nobody is listed, so that every key is its own operator. Two laboratories have the same keys.
    """

    name = "laboratory"

    def __init__(
        self,
        peers: int = 4,
        operators: Sequence[str] | None = None,
        config: DefenseConfig | None = None,
        limits: SwarmLimits | None = None,
        mode: Literal["open", "allow-list"] = "allow-list",
    ) -> None:
        self.now = 1000.0
        self.lag = 0
        self.identities = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(1, peers + 1)]
        self.own = Identity.from_seed(bytes([255]) * 32)
        admission = self._admission(operators or [f"operator {i}" for i in range(peers)], mode)
        self.manifest = self._manifest(admission, limits or SwarmLimits())
        self.config = config or DefenseConfig()
        self.counters = Counters()
        clock = Clock(lambda: self.now, 0.0, 10.0)
        context = GateContext(self.manifest, self.own.key, config=self.config)
        self.gate = Gate(context, clock, lambda _: self.lag, counters=self.counters)
        self.duplicates = DuplicateMemory(self.config, self.counters)
        self.memory = ScreenMemory(self.duplicates, self.gate.reputation, self.counters)
        self.context = ScreenContext(
            self.manifest, self.rebuild, TOKENIZER, lambda _: MAX_CHARS, claimed=_prompt, config=self.config
        )
        self._sequences = [0] * peers

    def _admission(self, operators: Sequence[str], mode: Literal["open", "allow-list"]) -> Admission:
        keys: dict[str, list[str]] = {}
        for identity, operator in zip(self.identities, operators, strict=True):
            keys.setdefault(operator, []).append(identity.key.hex())
        return Admission(mode=mode, operators=keys if mode == "allow-list" else {})

    def _manifest(self, admission: Admission, limits: SwarmLimits) -> Manifest:
        return Manifest(
            name=self.name,
            founder=self.own.key.hex(),
            genesis=0,
            round_seconds=10,
            tasks=[TaskEntry(name="lab/name")],
            limits=limits,
            admission=admission,
        )

    @property
    def round(self) -> int:
        """The current round."""
        return int(self.now // 10)

    def rebuild(self, round_number: int, scope_key: bytes, slot: int) -> RebuiltPrompt:
        """Return the prompt of a slot."""
        derived = derive_prompt(self.manifest, round_number, scope_key, slot)
        index = resolve(derived, lambda task, seed, index: f"{task} {seed} {index}")
        return _prompt(PromptName(derived.scope, slot, derived.task, derived.seed, index))

    def rollout(self, completions: Sequence[str], slot: int = 0, **changes: Any) -> Rollout:
        """Return an honest rollout of this round's shared prompt in `slot`; `changes` replace its fields."""
        prompt = self.rebuild(int(changes.get("round", self.round)), SHARED, slot)
        count = len(completions)
        honest = Rollout(
            prompt=PromptName(0, slot, prompt.task, prompt.seed, prompt.index),
            prompt_hash=prompt.prompt_hash,
            lineage=LINEAGE,
            tokenizer=TOKENIZER,
            sampler=SamplerSettings(1_000_000, 1_000_000, 0, 64),
            round=self.round,
            policy_version=0,
            completions=tuple(completions),
            finish=bytes([FINISH_EOS]) * count,
            token_ids=(),
            logps=(),
            mean_logps=pack_floats([-1.0] * count),
            rewards=pack_floats([0.0] * count),
        )
        return msgspec.structs.replace(honest, **changes)

    def header(self, peer: int, blob: bytes, rollout: Rollout | None = None, **changes: Any) -> Header:
        """Return the header under which `peer` announces a blob, with its next sequence number."""
        self._sequences[peer] += 1
        honest = Header(
            kind=Kind.ROLLOUT,
            version=PROTOCOL_VERSION,
            swarm_id=self.manifest.swarm_id,
            key=self.identities[peer].key,
            round=rollout.round if rollout else self.round,
            policy_version=rollout.policy_version if rollout else 0,
            prompt_hash=rollout.prompt_hash if rollout else bytes(32),
            sequence=self._sequences[peer],
            payload_length=len(blob),
            payload_hash=payload_hash(blob),
        )
        return replace(honest, **changes)

    def sealed(self, peer: int, rollout: Rollout) -> Outgoing:
        """Return the message in which `peer` publishes a rollout."""
        blob = encode_rollout(rollout)
        return Outgoing(self.sign(peer, self.header(peer, blob, rollout)), blob)

    def sign(self, peer: int, header: Header) -> bytes:
        """Sign a header with the key of `peer`."""
        return seal(self.identities[peer], header).encode()

    def receive(self, peer: int, message: Outgoing) -> Screened | Held | Verdict:
        """Pass one message, handed on by `peer`, through gate and screen."""
        pointer = self.gate.admit(message.announcement, self.identities[peer].key)
        return self.screen(pointer, message.blob) if isinstance(pointer, Pointer) else pointer

    def screen(self, pointer: Pointer, blob: bytes) -> Screened | Verdict:
        """Judge the blob of a pointer."""
        return screen(pointer, blob, self.context, self.memory)


class OtherLaboratory(Laboratory):
    """Another swarm of the same keys, with the same founder."""

    name = "another laboratory"


def _prompt(name: PromptName) -> RebuiltPrompt:
    return RebuiltPrompt.of(name.task, name.seed, name.index, f"{name.task} {name.seed} {name.index}")
