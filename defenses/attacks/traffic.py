"""Attacks on the messages: forged, repeated, copied, too many, or no messages at all."""

# ruff: noqa: ARG002 (one interface for all attacks: not each of them uses everything that it is handed)

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from shoal.defenses.attacks.base import Attack, Draft, Expected, Outgoing, header_of
from shoal.protocol.envelope import ANNOUNCEMENT_SIZE, Announcement, Header, payload_hash, verify_announcement
from shoal.protocol.errors import ProtocolError
from shoal.protocol.prompts import SCOPE_SHARED
from shoal.protocol.wire import Rollout, decode_rollout, encode_rollout

_REMEMBERED = 64


class Listener(Attack):
    """An attack that remembers the latest messages of its peers."""

    def __init__(self) -> None:
        super().__init__()
        self._heard: deque[Outgoing] = deque(maxlen=_REMEMBERED)

    def overhear(self, announcement: bytes, blob: bytes) -> None:
        """Keep a peer's message."""
        self._heard.append(Outgoing(announcement, blob))

    def state(self) -> dict[str, Any]:
        """Return what was heard as plain lists."""
        return {**super().state(), "heard": [[message.announcement, message.blob] for message in self._heard]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        super().restore(state)
        self._heard.clear()
        self._heard.extend(Outgoing(bytes(announcement), bytes(blob)) for announcement, blob in state["heard"])


class Replay(Listener):
    """Sends again, byte for byte, what it and its peers have sent before."""

    name = "replay"
    expected = Expected("header", "the seen-set outlives the staleness bound")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Send the honest message twice, and everything heard again."""
        again = [sent, sent, *self._heard]
        self._heard.append(sent)
        return again


class Flood(Attack):
    """Announces one rollout many times under fresh sequence numbers, all validly signed."""

    name = "flood"
    expected = Expected("quota", "rollouts per key and round are capped; choice is by operator, not by rollout")

    def __init__(self, count: int = 200) -> None:
        super().__init__()
        self.count = count

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Sign the same payload `count` times."""
        header = header_of(sent)
        numbered = (replace(header, sequence=self._next_sequence(header.sequence)) for _ in range(self.count))
        return [Outgoing(self._signed(one), sent.blob) for one in numbered]


class Useless(Attack):
    """Publishes, as often as its quota allows, rollouts that are well formed, all wrong and all alike."""

    name = "useless"
    expected = Expected(
        "mixing", "operators take turns, so it costs one turn; a group without a right answer adds nothing"
    )

    def __init__(self, count: int = 64, answer: str = "?") -> None:
        super().__init__()
        self.count = count
        self.answer = answer

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Give the same wrong answer throughout."""
        size = len(draft.completions)
        return replace(draft, completions=(self.answer,) * size, rewards=(0.0,) * size, correct=(False,) * size)

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Sign it under `count` sequence numbers."""
        header = header_of(sent)
        numbered = (replace(header, sequence=self._next_sequence(header.sequence)) for _ in range(self.count))
        return [Outgoing(self._signed(one), sent.blob) for one in numbered]


class Resealing(Attack):
    """Publishes blobs of its own making instead of the honest one, each under a good signature."""

    def blobs(self, blob: bytes, rng: Random) -> Iterable[bytes]:
        """Return what to publish, made of the honest blob."""
        raise NotImplementedError

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Announce each blob."""
        header = header_of(sent)
        return [self._sealed(header, blob) for blob in self.blobs(sent.blob, rng)]

    def _sealed(self, header: Header, blob: bytes, **changes: Any) -> Outgoing:
        """Return a blob with its signed announcement; `changes` are made to the header last."""
        fresh = replace(_about(header, blob), sequence=self._next_sequence(header.sequence))
        return Outgoing(self._signed(replace(fresh, **changes)), blob)


class Malformed(Resealing):
    """Sends bytes that are no announcement, and signed announcements of payloads that are no rollout."""

    name = "malformed"
    expected = Expected("schema", "announcements fail at the header, payloads at the schema; then the sender is muted")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Send broken announcements and broken payloads beside an honest message."""
        header = header_of(sent)
        flipped = bytearray(sent.announcement)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        broken = [b"", rng.randbytes(ANNOUNCEMENT_SIZE), sent.announcement[:-1], bytes(flipped), rng.randbytes(4096)]
        honest = replace(header, sequence=self._next_sequence(header.sequence))
        messages = [Outgoing(self._signed(honest), sent.blob)]
        messages.extend(Outgoing(data, b"") for data in broken)
        return [*messages, *super().messages(sent, rng)]

    def blobs(self, blob: bytes, rng: Random) -> Iterable[bytes]:
        """Noise, a cut blob, and rollouts whose columns do not fit."""
        rollout = decode_rollout(blob)
        nothing = _cut(rollout, 0)
        too_many = msgspec.structs.replace(rollout, completions=rollout.completions * 64)
        not_finite = msgspec.structs.replace(rollout, rewards=b"\x00\x00\xc0\x7f" * len(rollout.completions))
        one_short = msgspec.structs.replace(rollout, finish=rollout.finish[:-1])
        return [rng.randbytes(64), blob[:-1], *map(encode_rollout, (nothing, too_many, not_finite, one_short))]


class BadSignature(Listener):
    """Breaks its own signatures and writes headers in other peers' names."""

    name = "bad-signature"
    expected = Expected("header", "one signature over the whole header; nothing is charged to the victim")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Send a broken signature, and for each peer heard a header of its with another payload."""
        own = Announcement.decode(sent.announcement)
        broken = bytes([own.signature[0] ^ 1]) + own.signature[1:]
        messages = [Outgoing(Announcement(own.header, broken).encode(), sent.blob)]
        for heard in self._heard:
            theirs = Announcement.decode(heard.announcement)
            forged = replace(_about(theirs.header, sent.blob), sequence=theirs.header.sequence + 1)
            messages.append(Outgoing(Announcement(forged, theirs.signature).encode(), sent.blob))
        return messages


class PromptPicking(Attack):
    """Publishes completions of a prompt that it chose itself under the name of a slot."""

    name = "prompt-picking"
    expected = Expected("provenance", "task, seed and index follow from round, scope and slot")

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Rename the prompt and seal the rollout again."""
        header = header_of(sent)
        rollout = decode_rollout(sent.blob)
        prompt = msgspec.structs.replace(rollout.prompt, seed=rollout.prompt.seed + 1 + rng.randrange(1000))
        blob = encode_rollout(msgspec.structs.replace(rollout, prompt=prompt))
        return [Outgoing(self._signed(_about(header, blob)), blob)]


class Copies(Listener):
    """Publishes what peers have sampled for shared prompts under its own key, instead of sampling."""

    name = "copies"
    expected = Expected("duplicates", "the later publisher loses; short answers need evidence over several rollouts")

    def overhear(self, announcement: bytes, blob: bytes) -> None:
        """Keep messages that are valid and about shared prompts: only those can be passed off as own."""
        try:
            verify_announcement(Announcement.decode(announcement))
            shared = decode_rollout(blob).prompt.scope == SCOPE_SHARED
        except ProtocolError:
            return
        if shared:
            super().overhear(announcement, blob)

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Send a copy of a peer's rollout, of the same prompt if one was heard; the honest message when none was."""
        if not self._heard:
            return [sent]
        own = header_of(sent)
        same = [message for message in self._heard if header_of(message).prompt_hash == own.prompt_hash]
        source = (same or list(self._heard))[-1]
        self._heard.remove(source)
        # Its own policy version, which must not fall as its sequence grows.
        rollout = msgspec.structs.replace(decode_rollout(source.blob), policy_version=own.policy_version)
        blob = encode_rollout(rollout)
        theirs = header_of(source)
        header = replace(_about(own, blob), round=theirs.round, prompt_hash=theirs.prompt_hash)
        return [Outgoing(self._signed(header), blob)]


def _about(header: Header, blob: bytes) -> Header:
    """Return the header with the length and hash of another payload."""
    return replace(header, payload_length=len(blob), payload_hash=payload_hash(blob))


def _cut(rollout: Rollout, count: int) -> Rollout:
    """Return the rollout with its first `count` completions only."""
    return msgspec.structs.replace(
        rollout,
        completions=rollout.completions[:count],
        finish=rollout.finish[:count],
        token_ids=rollout.token_ids[:count],
        logps=rollout.logps[:count],
        mean_logps=rollout.mean_logps[: 4 * count],
        rewards=rollout.rewards[: 4 * count],
    )
