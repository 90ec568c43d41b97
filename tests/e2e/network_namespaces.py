"""Machines of their own on one machine: network namespaces, joined by a wire that delays, loses and can be cut.

Every namespace has one TUN device. Its packets come to this process, which hands them on to the namespace that has the
destination's address, after a delay, or not at all. Kernels without the netem queueing discipline can do this too.
"""

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
LONGEST_PACKET = 65536
SUBNET = "10.77.0"


def refusal() -> str:
    """Return why namespaces cannot be made here; "" when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"shoal-probe-{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except (OSError, subprocess.CalledProcessError) as error:
        return f"the kernel refuses network namespaces or TUN devices: {error}"
    return ""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Wire:
    """The wire between all namespaces. `cut` holds the numbers of those that reach nobody."""

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    cut: set[int] = field(default_factory=set)
    carried: int = 0
    lost: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(0)
        self._tuns: dict[int, int] = {}  # namespace number → file descriptor
        self._names: list[str] = []
        self._stop = threading.Event()
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._thread = threading.Thread(target=self._carry, name="wire", daemon=True)

    def add(self, number: int) -> tuple[str, str]:
        """Make namespace `number`; return its name and its address."""
        name, device = f"shoal-{os.getpid()}-{number}", f"sh{os.getpid() % 100000}n{number}"
        _ip("netns", "add", name)
        self._names.append(name)
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
        self._tuns[number] = tun
        address = f"{SUBNET}.{number + 1}"
        _ip("link", "set", device, "netns", name)
        for command in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{address}/24", "dev", device),
            ("link", "set", device, "up"),
        ):
            _ip("-n", name, *command)
        return name, address

    def start(self) -> None:
        """Begin to carry packets."""
        self._thread.start()

    def close(self) -> None:
        """Take everything down."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)
        for tun in self._tuns.values():
            os.close(tun)
        for name in self._names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)

    def _carry(self) -> None:
        numbers = {tun: number for number, tun in self._tuns.items()}
        while not self._stop.is_set():
            due = self._waiting[0][0] - time.monotonic() if self._waiting else 0.2
            readable, _, _ = select.select(list(numbers), [], [], max(0.0, min(due, 0.2)))
            for tun in readable:
                with contextlib.suppress(BlockingIOError):
                    self._take(numbers[tun], os.read(tun, LONGEST_PACKET))
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(self._waiting)
                if to not in self.cut:
                    with contextlib.suppress(OSError):  # a full device loses packets, as any wire does
                        os.write(self._tuns[to], packet)
                        self.carried += 1

    def _take(self, sender: int, packet: bytes) -> None:
        """Put one packet on the wire; anything but IPv4 between two of us is dropped."""
        if len(packet) < 20 or packet[0] >> 4 != 4:
            return
        to = packet[19] - 1
        if to not in self._tuns or sender in self.cut or to in self.cut or self._random.random() < self.loss:
            self.lost += 1
            return
        due = time.monotonic() + self.delay + self.jitter * self._random.random()
        heapq.heappush(self._waiting, (due, self.carried + self.lost + len(self._waiting), to, packet))


@contextlib.contextmanager
def wire(
    namespaces: int, delay: float = 0.0, jitter: float = 0.0, loss: float = 0.0
) -> Iterator[tuple[Wire, list[tuple[str, str]]]]:
    """Namespaces 0, 1, … on one wire, taken down at the end; yields the wire, and name and address of each."""
    made = Wire(delay, jitter, loss)
    try:
        places = [made.add(number) for number in range(namespaces)]
        made.start()
        yield made, places
    finally:
        made.close()
