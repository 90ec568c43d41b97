"""Attacks on who speaks, for which swarm, and when: keys, signatures, sequences, versions and clocks."""

# ruff: noqa: ARG002 (one interface for all attacks: not each of them uses everything that it is handed)

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import msgspec

from shoal.defenses.attacks.base import Attack, Expected, Outgoing, header_of
from shoal.defenses.attacks.traffic import Listener, Resealing
from shoal.protocol.envelope import MAX_NUMBER, Announcement, Header, payload_hash
from shoal.protocol.identity import FIELD_PRIME, GROUP_ORDER, SMALL_ORDER_Y
from shoal.protocol.wire import decode_rollout, encode_rollout

FITS_ANYTHING = (1).to_bytes(32, "little") + bytes(32)
"""R is the neutral point and S is 0: under the neutral point as the key this signs every message."""

_SIGN_BIT = 1 << 255
_ELSEWHERE = b"the id of some other swarm".ljust(32, b".")


class Malleable(Listener):
    """Makes a second valid-looking signature of every message, without any key: S + L in place of S."""

    name = "malleable"
    expected = Expected("header", "S is below the group order, and a message is never named by its signature")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Send the honest message, then it and all that was heard under other signatures."""
        return [sent, *(malleated(message) for message in (sent, *self._heard))]


def malleated(message: Outgoing) -> Outgoing:
    """Return the message with the other signature that the equation S*B = R + h*A has for it."""
    announcement = Announcement.decode(message.announcement)
    first, second = announcement.signature[:32], int.from_bytes(announcement.signature[32:], "little")
    other = first + (second + GROUP_ORDER).to_bytes(32, "little")
    return Outgoing(Announcement(announcement.header, other).encode(), message.blob)


class WeakKeys(Attack):
    """Publishes under keys that nobody holds: of small order, and second spellings of such keys."""

    name = "weak-keys"
    expected = Expected("admission", "small-order and non-canonical keys are refused before their signature is judged")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Send the honest rollout under each of them, with a signature that fits any message under some."""
        header = header_of(sent)
        forged = (Announcement(replace(header, key=key), FITS_ANYTHING) for key in weak_keys())
        return [Outgoing(announcement.encode(), sent.blob) for announcement in forged]


def weak_keys() -> list[bytes]:
    """Return the encodings of all points of small order, the canonical ones first."""
    canonical = sorted(SMALL_ORDER_Y)
    others = [FIELD_PRIME + y for y in canonical if y + FIELD_PRIME < _SIGN_BIT]
    return [(y | sign).to_bytes(32, "little") for y in (*canonical, *others) for sign in (0, _SIGN_BIT)]


class CrossSwarm(Attack):
    """Sends what was signed for another swarm, as it is and with this swarm's id written over the other."""

    name = "cross-swarm"
    expected = Expected("header", "the swarm's id is signed; prompts are derived from it as well")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Sign the rollout for another swarm and send both forms."""
        header = header_of(sent)
        elsewhere = self._signed(replace(header, swarm_id=_ELSEWHERE, sequence=self._next_sequence(header.sequence)))
        signature = Announcement.decode(elsewhere).signature
        rewritten = Announcement(replace(header_of(Outgoing(elsewhere, b"")), swarm_id=header.swarm_id), signature)
        return [Outgoing(elsewhere, sent.blob), Outgoing(rewritten.encode(), sent.blob)]


class Equivocation(Resealing):
    """Gives one sequence number to two payloads and sends both."""

    name = "equivocation"
    expected = Expected("reputation", "two headers under one number are a proof against their key, which is banned")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Sign a second rollout, its completions in another order, under the number of the first."""
        return [sent, self.second(sent)]

    def second(self, sent: Outgoing) -> Outgoing:
        """Return the other message under the sequence number of `sent`."""
        rollout = decode_rollout(sent.blob)
        turned = msgspec.structs.replace(rollout, completions=rollout.completions[::-1])
        header = header_of(sent)
        return self._sealed(header, encode_rollout(turned), sequence=header.sequence)


class ClockSkew(Resealing):
    """Dates its rollouts an hour ahead and an hour back, and a little ahead."""

    name = "clock-skew"
    expected = Expected(
        "header", "rounds come from the own clock: older than the bound or more than one ahead is refused"
    )

    def __init__(self, rounds: int = 360) -> None:
        super().__init__()
        self.rounds = rounds  # an hour of rounds of 10 s, as in the laboratory

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Publish for each of these rounds; payload and header agree."""
        header = header_of(sent)
        dated = (header.round + offset for offset in (-self.rounds, -self.rounds // 10, 2, self.rounds))
        return [self._dated(sent, round_number) for round_number in dated if round_number >= 0]

    def _dated(self, sent: Outgoing, round_number: int) -> Outgoing:
        rollout = msgspec.structs.replace(decode_rollout(sent.blob), round=round_number)
        return self._sealed(header_of(sent), encode_rollout(rollout), round=round_number)


class FalseVersion(Resealing):
    """Claims the highest policy version there is, and lower ones after it."""

    name = "false-version"
    expected = Expected("header", "a sender's versions never fall; whoever claims the highest shuts itself out")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Publish under the highest version, then under the true one and one below."""
        true = header_of(sent).policy_version
        return [self._aged(sent, version) for version in (MAX_NUMBER, true, max(0, true - 1))]

    def _aged(self, sent: Outgoing, version: int) -> Outgoing:
        rollout = msgspec.structs.replace(decode_rollout(sent.blob), policy_version=version)
        return self._sealed(header_of(sent), encode_rollout(rollout), policy_version=version)


class FalseAccusation(Listener):
    """Makes honest peers look guilty: of two payloads under one number, of rubbish, of changed blobs."""

    name = "false-accusation"
    expected = Expected("header", "only what a key signed counts against it, and blobs only against their carrier")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Send the honest message, and for each peer heard what would convict it if signatures were not judged."""
        return [sent, *(forged for heard in self._heard for forged in accusations(heard, sent.blob))]


def accusations(heard: Outgoing, other: bytes) -> Iterator[Outgoing]:
    """Yield forged evidence against the key of an honest message; `other` is a blob that it never published."""
    announcement = Announcement.decode(heard.announcement)
    header, signature = announcement.header, announcement.signature
    yield Outgoing(Announcement(_naming(header, other), signature).encode(), other)  # one number, two payloads
    for step in range(1, 10):
        rubbish = b"rubbish" * step
        fresh = replace(_naming(header, rubbish), sequence=header.sequence + step)
        yield Outgoing(Announcement(fresh, signature).encode(), rubbish)
    yield Outgoing(heard.announcement, heard.blob[:-1] + bytes([heard.blob[-1] ^ 1]))  # its announcement, another blob
    yield malleated(heard)


def _naming(header: Header, blob: bytes) -> Header:
    return replace(header, payload_length=len(blob), payload_hash=payload_hash(blob))
