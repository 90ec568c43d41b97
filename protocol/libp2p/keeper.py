"""Keeps a p2pd running: the same identity and the same port, life after life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.libp2p.control import Handler
from shoal.protocol.libp2p.link import Link
from shoal.protocol.libp2p.p2pd import take_port
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.roads import Roads

log = logging.getLogger("shoal.network")

FIRST_WAIT, LAST_WAIT = 0.5, 30.0  # seconds before p2pd is started again, doubled while that fails
STEADY_SECONDS = 60.0  # a life that lasted longer counts as a success


class Keeper:
    """Puts the running link into `roads`, and takes it out while there is none; `restarted` is called after each start
    but the first."""

    def __init__(
        self, place: Place, roads: Roads, handlers: Mapping[str, Handler], restarted: Callable[[], None]
    ) -> None:
        self.port = 0
        self.restarts = 0
        self._place, self._roads, self._handlers, self._restarted = place, roads, handlers, restarted
        self._link: Link | None = None

    @property
    def pid(self) -> int:
        """The process id of p2pd; 0 while there is none."""
        return self._link.daemon.pid if self._link is not None else 0

    async def start(self) -> None:
        """Take the port and start p2pd. Raises UsageError and EnvironmentFault; then nothing is left behind."""
        settings = self._place.settings
        self.port = take_port(settings.host, settings.port)
        self._roads.link = self._link = await Link.start(self._place, self._handlers, self.port)

    async def run(self) -> None:
        """Start p2pd again whenever it ends, for ever."""
        wait, loop = FIRST_WAIT, asyncio.get_running_loop()
        while True:
            link, began = self._link, loop.time()
            if link is None:
                raise RuntimeError("a keeper is started before it runs")
            reason = await link.watch()
            self._roads.link, self._roads.connected = None, {}
            self._place.count("p2pd_ended")
            log.warning("the network daemon is gone (%s): it is started again", reason)
            link.daemon.kill()  # it may only be frozen
            await link.close()
            wait = FIRST_WAIT if loop.time() - began > STEADY_SECONDS else min(2 * wait, LAST_WAIT)
            while not await self._again(link):
                wait = min(2 * wait, LAST_WAIT)
                await asyncio.sleep(wait)
            self.restarts += 1
            self._restarted()

    async def close(self) -> None:
        """End p2pd; a second call does nothing."""
        link, self._link, self._roads.link = self._link, None, None
        if link is not None:
            await link.close()

    async def _again(self, earlier: Link) -> bool:
        try:
            take_port(self._place.settings.host, self.port)
            self._link = await Link.start(self._place, self._handlers, self.port, earlier.dht)
        except (EnvironmentFault, UsageError) as fault:
            self._place.count("p2pd_start_failed")
            log.warning("the network daemon cannot be started: %s", fault)
            return False
        self._roads.link = self._link
        return True
