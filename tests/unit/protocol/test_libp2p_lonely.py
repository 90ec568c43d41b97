"""Whom a node that has lost everybody tries, and where."""

import asyncio
from types import SimpleNamespace
from typing import Any

from shoal.protocol.libp2p.discovery import Discovery
from shoal.protocol.libp2p.settings import Libp2pSettings

BOOTSTRAP = "12D3KooWREDoxsr1pxNkdoAHvRfCpd3wRHNwAyBJoP9Px9iVSpCx"
PEER = "12D3KooWMQcfh1r3JbfP7xyMqEou14V65qPTDXPMtY1SbjVqvFxo"
NAMED, EARLIER, ELSEWHERE = "/dns4/bootstrap/tcp/47700", "/ip4/192.0.2.1/tcp/47700", "/ip4/192.0.2.2/tcp/47700"


async def _tried(known: list[tuple[str, str]], remembered: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    tried: dict[str, tuple[str, ...]] = {}

    async def connect(peer: str, addresses: tuple[str, ...]) -> None:
        tried[peer] = addresses

    settings = Libp2pSettings(bootstraps=(f"{NAMED}/p2p/{BOOTSTRAP}",))
    place: Any = SimpleNamespace(
        settings=settings,
        transport_id="own",
        rhythm=settings.rhythm,
        count=lambda reason: None,
        topic=lambda name: name,
        identity=SimpleNamespace(key=bytes(32)),
    )
    peers: Any = SimpleNamespace(
        all=lambda: [SimpleNamespace(transport_id=peer, addresses=(address,)) for peer, address in known],
        remembered=remembered,
    )
    roads: Any = SimpleNamespace(connected={}, connect=connect, link=None)
    record: Any = SimpleNamespace(changed=lambda addresses: False, renew=lambda addresses: b"")
    discovery = Discovery(place, peers, roads, record)
    discovery.look(())
    while len(tried) < len({BOOTSTRAP, *dict(known), *remembered}):
        await asyncio.sleep(0)
    await discovery.close()
    return tried


def test_a_bootstrap_that_has_moved_is_tried_where_it_was_named_first() -> None:
    tried = asyncio.run(_tried([(BOOTSTRAP, EARLIER), (PEER, ELSEWHERE)], {}))
    assert tried == {BOOTSTRAP: (NAMED, EARLIER), PEER: (ELSEWHERE,)}


def test_the_same_when_its_record_has_expired() -> None:
    assert asyncio.run(_tried([], {BOOTSTRAP: (EARLIER,)})) == {BOOTSTRAP: (NAMED, EARLIER)}
