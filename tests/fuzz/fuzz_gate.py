"""The admission gate and the screen under a script of messages: bytes are read as steps, and nothing is ever raised.

A step is a mark, an argument and a body. The body is an announcement, a header, a payload or a blob, of which only what
a stranger cannot forge is made good again: so that changes reach every layer. The gate is that of a small laboratory;
its memory is checked against its bounds after each script, and a restored gate must judge as the first does.
"""

import re
from collections.abc import Callable, Sequence
from random import Random

import fuzz_seeds as seeds
from fuzz_mutations import mutate
from fuzz_targets import Broken, Target, same

from shoal.defenses.attacks.base import Outgoing
from shoal.defenses.attacks.identity import weak_keys
from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.equivocation import Proof
from shoal.defenses.pointer import Held, Pointer
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import LAYERS, Verdict
from shoal.protocol import canonical
from shoal.protocol.compression import compress, decompress
from shoal.protocol.envelope import HEADER_SIZE, Announcement, Header, verify_announcement
from shoal.protocol.errors import ProtocolError
from shoal.protocol.limits import DEFAULT_LIMITS
from shoal.protocol.manifest import SwarmLimits
from shoal.protocol.staleness import Freshness, freshness

SMALL = DefenseConfig(  # so small that a script of a few steps fills every place
    seen=4,
    senders=2,
    quota_entries=4,
    held=2,
    held_per_key=1,
    subjects=2,
    members=2,
    prompts=2,
    pairs=2,
    witnessed=4,
    proofs=2,
    first_sights=2,
    newcomer_rounds=1,
)
LIMITS = SwarmLimits(rollouts_per_key_per_round=4, max_age_rounds=2, shared_slots=8)
COUNTER = re.compile(r"[a-z]+/[a-z0-9_]{1,64}")
MOST_STEPS = 24
MOST_COUNTERS = 200


class Scene:
    """One laboratory and what was sent before."""

    def __init__(self, mode: int) -> None:
        self.lab = Laboratory(peers=3, config=SMALL, limits=LIMITS, mode="open" if mode % 2 else "allow-list")
        self.sent: list[Outgoing] = []

    def step(self, mark: int, argument: int, body: bytes) -> None:
        """Carry one step out and check what comes of it."""
        getattr(self, STEPS[mark % len(STEPS)].__name__)(argument, body)

    def raw(self, argument: int, body: bytes) -> None:
        """The body is an announcement as it came."""
        self._receive(argument, Outgoing(body, b""))

    def forged_header(self, argument: int, body: bytes) -> None:
        """The body is a header; a peer signs it, whatever it says of anything but the key. Half of them are timely."""
        try:
            header = Header.decode(body[:HEADER_SIZE])
        except ProtocolError:
            return
        peer = argument % 3
        round_number = self.lab.round + argument % 5 - 3 if argument & 128 else header.round
        changed = self.lab.header(peer, b"", round=round_number, policy_version=header.policy_version)
        same_fields = {"kind": header.kind, "sequence": header.sequence, "payload_length": header.payload_length}
        self._receive(argument, Outgoing(self.lab.sign(peer, _with(changed, **same_fields)), body))

    def payload(self, argument: int, body: bytes) -> None:
        """The body is a payload, sealed by a peer under a header that fits it."""
        self._sealed(argument, compress(body))

    def blob(self, argument: int, body: bytes) -> None:
        """The body is a blob, sealed by a peer."""
        self._sealed(argument, body)

    def again(self, argument: int, body: bytes) -> None:
        """Something sent before comes again, its announcement or its blob changed."""
        if not self.sent:
            return
        message = self.sent[argument % len(self.sent)]
        self._receive(argument, Outgoing(message.announcement, body) if argument & 64 else message)

    def weak(self, argument: int, body: bytes) -> None:
        """Under a key that nobody holds; the body's end is the signature."""
        keys = weak_keys()
        header = self.lab.header(argument % 3, b"", key=keys[argument % len(keys)])
        self._receive(argument, Outgoing(Announcement(header, body[-64:].rjust(64, b"\0")).encode(), b""))

    def time(self, argument: int, body: bytes) -> None:
        """Time goes on, or the clock is set back; updates are made; what was held is released."""
        self.lab.now = max(500.0, self.lab.now + argument - 64)
        self.lab.lag = argument % 12
        for pointer in self.lab.gate.release(self.lab.round):
            self._admitted(pointer)

    def restart(self, argument: int, body: bytes) -> None:
        """The gate's state comes back as it was."""
        state = self.lab.gate.state()
        self.lab.gate.restore(state)
        if self.lab.gate.state() != state:
            raise Broken("a restored gate differs from the one that was saved")

    def invited(self, argument: int, body: bytes) -> None:
        """A record has shown the body as an invite."""
        self.lab.gate.admissions.learn(self.lab.identities[argument % 3].key, body)

    def _sealed(self, argument: int, blob: bytes) -> None:
        peer = argument % 3
        rollout = self.lab.rollout(("a", "b"))
        self._receive(argument, Outgoing(self.lab.sign(peer, self.lab.header(peer, blob, rollout)), blob))

    def _receive(self, argument: int, message: Outgoing) -> None:
        self.sent = [*self.sent[-7:], message]
        sender = bytes([argument]) * (argument % 80)
        outcome = self.lab.gate.admit(message.announcement, sender)
        if isinstance(outcome, Pointer):
            same(outcome.announcement.encode(), message.announcement, "pointer")
            self._admitted(outcome)
            screened = self.lab.screen(outcome, message.blob)
            if isinstance(screened, Screened):
                same(canonical.encode(screened.rollout), decompress(message.blob, DEFAULT_LIMITS), "screened rollout")
                self._passed(outcome, message.blob, screened)
            elif screened.layer not in LAYERS:
                raise Broken(f"no such layer: {screened}")
        elif not isinstance(outcome, Held) and (not isinstance(outcome, Verdict) or outcome.layer not in LAYERS):
            raise Broken(f"no such outcome: {outcome}")

    def _passed(self, pointer: Pointer, blob: bytes, screened: Screened) -> None:
        """The screen has let it through."""

    def _admitted(self, pointer: Pointer) -> None:
        if freshness(self.lab.round, pointer.round, LIMITS.max_age_rounds) is not Freshness.FRESH:
            raise Broken("beyond the bound on age")
        if self.lab.lag > LIMITS.max_lag:
            raise Broken("beyond the bound on lag")
        if not any(identity.key == pointer.key for identity in self.lab.identities):
            raise Broken("a pointer of a key that nobody holds")

    def check_bounds(self) -> None:
        """Whatever was sent, memory stays within the configuration and counters within what the code names."""
        state, config = self.lab.gate.state(), self.lab.config
        sizes = {
            "seen": (len(state["seen"]), config.seen),
            "senders": (len(state["senders"]), config.senders + 1),
            "keys": (len(state["keys"]), config.quota_entries),
            "held": (len(state["held"]), config.held),
            "members": (len(state["admissions"]), config.members),
            "witnessed": (len(state["equivocations"]["witnessed"]), config.witnessed),
            "proofs": (len(state["equivocations"]["proofs"]), config.proofs),
            "sights": (len(state["newcomers"]), config.first_sights),
            "subjects": (len(self.lab.gate.reputation.state()["records"]), 2 * config.subjects),
            "prompts": (len(self.lab.duplicates.state()["prompts"]), config.prompts),
            "counters": (len(self.lab.counters.state()), MOST_COUNTERS),
        }
        for name, (size, most) in sizes.items():
            if size > most:
                raise Broken(f"{name}: {size} entries, {most} are the bound")
        for proof in self.lab.gate.equivocations.proofs():
            check_proof(proof)
        for name in self.lab.counters.state():
            if not COUNTER.fullmatch(name):
                raise Broken(f"{name!r} is no counter")


def check_proof(proof: Proof) -> None:
    """Raise Broken unless anybody can see from a proof alone that its key has contradicted itself."""
    first, second = proof.first, proof.second
    for one in (first, second):
        verify_announcement(one)
    same_name = (first.header.key, first.header.sequence) == (second.header.key, second.header.sequence)
    if not same_name or first.header == second.header:
        raise Broken("a proof that proves nothing")


def _with(header: Header, **changes: object) -> Header:
    values = {name: getattr(header, name) for name in Header.__slots__}
    return Header(**(values | changes))


STEPS: tuple[Callable[[Scene, int, bytes], None], ...] = (
    *(Scene.raw, Scene.forged_header, Scene.payload, Scene.payload, Scene.blob),
    *(Scene.again, Scene.weak, Scene.time, Scene.restart, Scene.invited),
)


def read_script(data: bytes) -> list[tuple[int, int, bytes]]:
    """Read steps: a mark, an argument, two bytes of length and so many bytes of body; a short end is a short body."""
    steps: list[tuple[int, int, bytes]] = []
    at = 1
    while at + 4 <= len(data) and len(steps) < MOST_STEPS:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        steps.append((data[at], data[at + 1], data[at + 4 : at + 4 + length]))
        at += 4 + length
    return steps


def write_script(mode: int, steps: Sequence[tuple[int, int, bytes]]) -> bytes:
    """The bytes of a script."""
    parts = [
        bytes([mark, argument]) + len(body[:65_535]).to_bytes(2, "big") + body[:65_535]
        for mark, argument, body in steps
    ]
    return bytes([mode]) + b"".join(parts)


def play(data: bytes) -> None:
    """Play one script."""
    scene = Scene(data[0] if data else 0)
    for mark, argument, body in read_script(data):
        scene.step(mark, argument, body)
    scene.check_bounds()


_LAB = Laboratory(peers=3, limits=LIMITS)
ANNOUNCED = [_LAB.sealed(peer, _LAB.rollout(("a", "b"))).announcement for peer in range(3)]
HEADERS = [one[:HEADER_SIZE] for one in ANNOUNCED]
PAYLOADS = [canonical.encode(_LAB.rollout(texts)) for texts in (("a", "b"), tuple("abcdefgh"), ("x" * 40, "y" * 40))]
BLOBS = [*map(compress, PAYLOADS), *seeds.FRAMES[-4:]]
FITTING = {
    Scene.raw: ANNOUNCED,
    Scene.forged_header: HEADERS,
    Scene.payload: PAYLOADS,
    Scene.blob: BLOBS,
    Scene.again: BLOBS,
    Scene.invited: [seeds.CHAIN],
}
BODIES = [body for bodies in FITTING.values() for body in bodies]
SCRIPTS = [
    write_script(mode, [(mark, argument + place, body) for place, body in enumerate(BODIES[:MOST_STEPS])])
    for mode in (0, 1)
    for mark, argument in ((0, 0), (1, 1), (2, 2), (4, 0))
]
GATE = Target("gate", SCRIPTS, play, ())


def new_script(rng: Random) -> bytes:
    """A script of broken messages: the changes are made inside of the steps, which noise would only misalign."""
    steps: list[tuple[int, int, bytes]] = []
    for _ in range(rng.randint(1, 8)):
        mark = rng.randrange(len(STEPS))
        body = rng.choice(FITTING.get(STEPS[mark], BODIES) if rng.random() < 0.9 else BODIES)
        steps.append((mark, rng.randrange(256), mutate(body, rng, BODIES) if rng.random() < 0.7 else body))
    return write_script(rng.randrange(2), steps)
