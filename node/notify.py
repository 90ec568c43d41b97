"""What the service manager is told (sd_notify(3)): ready, alive, stopping. Nothing happens where none listens."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, MutableMapping

from shoal.node.view import NodeView

log = logging.getLogger(__name__)

STATUS_SECONDS = 10.0  # how often the status line is renewed where no watchdog asks for more
LONGEST_STATUS = 200


class Notifier:
    """Sends datagrams to NOTIFY_SOCKET; a path, or an abstract address that begins with @.

    A send that fails is counted in `failures` and logged: the service manager must never be able to hold a node up.
    """

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self.watchdog_seconds = watchdog_seconds
        self.failures = 0
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> "Notifier":
        """Read and remove the variables of the service manager: child processes must not speak for the node."""
        address = environment.pop("NOTIFY_SOCKET", None)
        microseconds = environment.pop("WATCHDOG_USEC", "")
        owner = environment.pop("WATCHDOG_PID", "")
        ours = not owner or owner == str(os.getpid())
        seconds = int(microseconds) / 1e6 if ours and microseconds.isascii() and microseconds.isdecimal() else 0.0
        usable = address is not None and address[:1] in ("/", "@")  # others (vsock) are for containers of other kinds
        return cls(address if usable else None, seconds or None)

    @property
    def active(self) -> bool:
        """Whether a service manager listens."""
        return self._socket is not None

    def send(self, *lines: str) -> None:
        """Send assignments such as READY=1; never raises for what the other side does."""
        if self._socket is None or self._address is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except OSError as error:
            self.failures += 1
            log.warning("the service manager was not told %s: %s", lines[0], error)

    def ready(self) -> None:
        """Tell that the node has started."""
        self.send("READY=1")

    def alive(self, healthy: bool, reason: str) -> None:
        """Renew the watchdog while the node is healthy, and the status line always."""
        status = f"STATUS={' '.join(reason.split())[:LONGEST_STATUS]}"
        self.send("WATCHDOG=1", status) if healthy else self.send(status)

    def stopping(self) -> None:
        """Tell that the node drains and will end."""
        self.send("STOPPING=1")

    def close(self) -> None:
        """Close the socket; harmless when repeated."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def keep(self, view: NodeView, started: Callable[[], bool]) -> None:
        """Send READY=1 once `started` holds, then the watchdog at half its time while the view is stepping.

        Before that the watchdog does not run: systemd's start timeout covers the start. Runs until cancelled.
        """
        if self._socket is None:
            return
        pause = min(STATUS_SECONDS, (self.watchdog_seconds or STATUS_SECONDS) / 2)
        told = False
        while True:
            if not told and started():
                self.ready()
                told = True
            self.alive(*view.stepping())
            await asyncio.sleep(pause if told else min(pause, 0.5))
