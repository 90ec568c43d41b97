"""One life of the connection to the network: a p2pd, the requests to it, and the DHT on top, which end together."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Mapping

from shoal.protocol.errors import EnvironmentFault
from shoal.protocol.libp2p.control import Control, Handler
from shoal.protocol.libp2p.dht import Dht
from shoal.protocol.libp2p.p2pd import MAX_MESSAGE, Daemon
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.settings import Libp2pSettings
from shoal.protocol.records import TRANSPORT

LATE = 3  # unanswered requests in a row after which p2pd is taken for dead
MOST_CONNECTIONS, FEWEST_CONNECTIONS = 192, 128  # above the first, p2pd closes idle ones down to the second


class Link:
    """Made by `start`; ends by itself with p2pd (`watch` tells), or by `close`."""

    def __init__(self, daemon: Daemon, control: Control, dht: Dht, seconds: float) -> None:
        self.daemon, self.control, self.dht = daemon, control, dht
        self._seconds = seconds

    @staticmethod
    async def start(place: Place, handlers: Mapping[str, Handler], port: int, earlier: Dht | None = None) -> Link:
        """Start p2pd on a port, and all that speaks through it; what an `earlier` DHT held is taken over.

        Raises EnvironmentFault; then nothing is left behind.
        """
        settings = place.settings
        daemon = Daemon(place.identity.derive(TRANSPORT), flags(settings, port), settings.daemon)
        await daemon.start(settings.start_seconds)
        control = Control(daemon.control_path, f"{daemon.folder}/streams", place.count, settings.rhythm.call)
        try:
            dht = await Dht.create(place, daemon.control_path, earlier)
            for protocol, handler in handlers.items():
                await control.handle(protocol, handler)
        except BaseException as fault:
            await control.close()
            await daemon.stop()
            if isinstance(fault, (OSError, EOFError)):
                raise EnvironmentFault(f"the network daemon ended at once: {daemon.last_words}") from fault
            raise
        return Link(daemon, control, dht, settings.rhythm.call)

    async def watch(self) -> str:
        """Wait until this link has ended by itself; why it did."""
        late = 0
        while late < LATE:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.daemon.ended.wait(), self._seconds)
                return "the process ended"
            if self.dht.broken:
                return "it closed the connection"
            try:
                await self.control.identify()
                late = 0
            except TimeoutError:
                late += 1
            except (OSError, EOFError):
                return "it takes no requests"
        return "it does not answer"

    async def close(self) -> None:
        """End p2pd and whatever hangs on it; a second call does nothing."""
        await self.dht.close()
        await self.control.close()
        await self.daemon.stop()


def flags(settings: Libp2pSettings, port: int) -> list[str]:
    """The flags of p2pd for these settings; TCP and QUIC share one number."""
    family, host = ("ip6" if ":" in settings.host else "ip4"), settings.host
    listen = f"/{family}/{host}/tcp/{port}" + (f",/{family}/{host}/udp/{port}/quic-v1" if settings.quic else "")
    bootstraps = ",".join(settings.bootstraps)
    relayed = settings.use_relays and bool(bootstraps) and not settings.relay
    switches = {
        "dhtServer": True,  # libp2p's own DHT, which finds addresses for peer ids
        "autonat": True,  # tell others whether they can be reached
        "natPortMap": settings.use_relays and not _loopback(host),
        "relay": settings.use_relays or settings.relay,
        "relayService": settings.relay,
        "forceReachabilityPublic": settings.relay,  # a relay serves from its start, not when p2pd finds out that it can
        "autoRelay": relayed,
        "connManager": True,
    }
    values = {
        "hostAddrs": listen,
        "announceAddrs": ",".join(settings.announce_addresses),
        "trustedRelays": bootstraps if relayed else "",
        "connHi": str(MOST_CONNECTIONS),
        "connLo": str(FEWEST_CONNECTIONS),
        "persistentConnMaxMsgSize": str(MAX_MESSAGE),
    }
    return [f"-{name}={int(on)}" for name, on in switches.items()] + [
        f"-{name}={value}" for name, value in values.items() if value
    ]


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
