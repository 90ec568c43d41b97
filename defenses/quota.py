"""Byte and rate quotas (layer 1): of senders before any parse, of keys only with their own signature."""

from functools import partial
from typing import Any

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.verdict import Counters


class SenderQuota:
    """Bytes of one round by transport-level sender, charged before anything is parsed.

    Beyond the bounded number of senders all further ones share one account: new names buy a flooder nothing.
    """

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self._bytes: dict[bytes, int] = {}

    def new_round(self) -> None:
        """Begin the accounts of a new round."""
        self._bytes = {}

    def charge(self, sender: bytes, size: int) -> bool:
        """Charge a sender; False when it has spent its bytes of this round."""
        sender = sender[:64]  # a name has 32 or 39 bytes; what is longer only wants memory
        if sender not in self._bytes and len(self._bytes) >= self._config.senders:
            self._counters.add("quota", "shared_account")
            sender = b""
        spent = self._bytes.get(sender, 0)
        if spent + size > self._config.sender_bytes_per_round:
            return False
        self._bytes[sender] = spent + size
        return True

    def state(self) -> list[Any]:
        """Return the accounts as plain lists."""
        return [[sender, spent] for sender, spent in self._bytes.items()]

    def restore(self, state: list[Any]) -> None:
        """Take over what `state` returned."""
        self._bytes = {bytes(sender): int(spent) for sender, spent in state}


class KeyQuota:
    """Rollouts and payload bytes by (key, round of the rollout).

    `room` only looks: the gate charges after the signature, so that a forged header costs its victim nothing.
    """

    def __init__(self, config: DefenseConfig, counters: Counters, per_round: tuple[int, int]) -> None:
        self._spent: BoundedMap[tuple[bytes, int], tuple[int, int]] = BoundedMap(
            config.quota_entries, partial(counters.add, "quota", "evicted_account")
        )
        self.per_round = per_round

    def room(self, key: bytes, round_number: int, size: int) -> str:
        """Return "" when one more rollout of `size` bytes fits, else the reason."""
        count, total = self._spent.get((key, round_number)) or (0, 0)
        most, most_bytes = self.per_round
        if count + 1 > most:
            return "rollouts_per_key"
        return "bytes_per_key" if total + size > most_bytes else ""

    def charge(self, key: bytes, round_number: int, size: int) -> None:
        """Charge one rollout of `size` bytes."""
        count, total = self._spent.get((key, round_number)) or (0, 0)
        self._spent.put((key, round_number), (count + 1, total + size))

    def expire(self, oldest_round: int) -> None:
        """Drop the accounts of rounds before `oldest_round`."""
        self._spent.expire(lambda account, _: account[1] >= oldest_round)

    def state(self) -> list[Any]:
        """Return the accounts as plain lists."""
        return [[key, number, count, size] for (key, number), (count, size) in self._spent.items()]

    def restore(self, state: list[Any]) -> None:
        """Take over what `state` returned."""
        self._spent.replace(((bytes(key), int(number)), (int(count), int(size))) for key, number, count, size in state)


class HeldAnnouncements:
    """Announcements of the coming round, already verified, kept until it begins; bounded by key and in all."""

    def __init__(self, config: DefenseConfig) -> None:
        self._config = config
        self._held: dict[bytes, tuple[int, bytes, bytes, bytes]] = {}
        self._by_key: dict[bytes, int] = {}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._held

    def keep(self, digest: bytes, round_and_key: tuple[int, bytes], data: bytes, sender: bytes) -> bool:
        """Keep one announcement; False when its key or the whole store has no room left."""
        round_number, key = round_and_key
        if len(self._held) >= self._config.held or self._by_key.get(key, 0) >= self._config.held_per_key:
            return False
        self._held[digest] = (round_number, key, data, sender)
        self._by_key[key] = self._by_key.get(key, 0) + 1
        return True

    def release(self, round_number: int) -> list[tuple[bytes, bytes]]:
        """Remove and return (data, sender) of everything that is due, in order of arrival."""
        due = [entry for entry in self._held.values() if entry[0] <= round_number]
        self._held = {digest: entry for digest, entry in self._held.items() if entry[0] > round_number}
        self._by_key = {}
        for _, key, _, _ in self._held.values():
            self._by_key[key] = self._by_key.get(key, 0) + 1
        return [(data, sender) for _, _, data, sender in due]

    def state(self) -> list[Any]:
        """Return everything held as plain lists."""
        return [[digest, *entry] for digest, entry in self._held.items()]

    def restore(self, state: list[Any]) -> None:
        """Take over what `state` returned."""
        self._held = {}
        self._by_key = {}
        for digest, number, key, data, sender in state:
            self.keep(bytes(digest), (int(number), bytes(key)), bytes(data), bytes(sender))
