"""This node's own record: made anew when it is due or when something in it has changed that others act on."""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal.protocol.errors import TooLarge
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.settings import RecordFacts
from shoal.protocol.records import GOSSIP, TRANSPORT, PeerRecord, prove, seal_record


class OwnRecord:
    """The signed record as it stands; empty before the first."""

    def __init__(self, place: Place, about: Callable[[], RecordFacts]) -> None:
        self.sealed = b""
        self._place, self._about = place, about
        self._transport, self._gossip = prove(place.identity, TRANSPORT), prove(place.identity, GOSSIP)
        self._sequence = 0
        self._told: tuple[object, ...] = ()

    def changed(self, addresses: tuple[str, ...]) -> bool:
        """Whether others should learn of a change at once; a new policy version waits for the next refresh."""
        return self._told != _urgent(self._about(), addresses)

    def renew(self, addresses: tuple[str, ...], now: float | None = None) -> bytes:
        """Make the record anew; addresses at the end are left out when it would be too long."""
        facts, now = self._about(), time.time() if now is None else now
        self._sequence = max(self._sequence + 1, round(now * 1000))  # grows across restarts too
        self._told = _urgent(facts, addresses)
        while True:
            try:
                self.sealed = seal_record(self._place.identity, self._record(facts, addresses, now))
            except TooLarge:
                if not addresses:
                    raise
                addresses = addresses[:-1]
            else:
                return self.sealed

    def _record(self, facts: RecordFacts, addresses: tuple[str, ...], now: float) -> PeerRecord:
        return PeerRecord(
            swarm_id=self._place.swarm_id,
            key=self._place.identity.key,
            sequence=self._sequence,
            expires=round(now + self._place.rhythm.ttl),
            lineage=facts.lineage,
            tokenizer=facts.tokenizer,
            policy_version=facts.policy_version,
            capabilities=facts.capabilities,
            addresses=addresses,
            transport_key=self._transport[0],
            transport_proof=self._transport[1],
            gossip_key=self._gossip[0],
            gossip_proof=self._gossip[1],
            revision=facts.revision,
            invite=facts.invite,
        )


def _urgent(facts: RecordFacts, addresses: tuple[str, ...]) -> tuple[object, ...]:
    return (facts.lineage, facts.tokenizer, facts.capabilities, facts.revision, facts.invite, addresses)
