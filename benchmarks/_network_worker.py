"""One process of the network benchmark: a transport that does what it is told, and says when it was done."""

import asyncio
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.settings import Libp2pSettings, RecordFacts
from shoal.protocol.libp2p.transport import Libp2pTransport
from shoal.protocol.limits import MIB

SWARM = hashlib.sha256(b"shoal/benchmark").digest()
LARGEST = 64 * MIB


def say(**what: Any) -> None:
    """Tell the benchmark something."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def daemon_of(pid: int) -> int | None:
    """Return the pid of this process's p2pd."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return next((int(c) for c in children if "p2pd" in Path(f"/proc/{c}/comm").read_text(encoding="ascii")), None)


async def verify(transport: Libp2pTransport) -> None:
    """Fetch whatever is announced, and say when it was verified."""
    async for received in transport.announcements():
        key, digest = received.data[:32], received.data[32:64]
        blob = await transport.fetch(key, digest, LARGEST)
        say(at=time.time(), bytes=len(blob))


async def main(number: int, count: int, bootstrap: str) -> None:
    """Start, connect, and follow what comes on standard input until it ends."""
    identity = Identity.from_seed(hashlib.sha256(f"shoal/benchmark/{number}".encode()).digest())
    settings = Libp2pSettings(host="127.0.0.1", bootstraps=(bootstrap,) if bootstrap else ())
    began = time.monotonic()
    transport = Libp2pTransport(identity, SWARM, settings, lambda _: True, lambda: RecordFacts(bytes(32), bytes(32), 0))
    await transport.start()
    if number == 0:
        say(address=transport.addresses()[0])
    say(seconds=time.monotonic() - began)
    while len(transport.peers()) < count - 1:
        await asyncio.sleep(0.05)
    say(seconds=time.monotonic() - began)
    reading = asyncio.create_task(verify(transport))
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        what = json.loads(line)
        if "announce" in what:
            blob = os.urandom(what["announce"])
            digest = hashlib.sha256(blob).digest()
            transport.offer(digest, blob)
            say(at=time.time())
            await transport.announce(identity.key + digest)
        else:
            pid = daemon_of(os.getpid())
            say(node_mb=memory_mb(os.getpid()), daemon_mb=memory_mb(pid) if pid else 0.0)
    reading.cancel()
    await transport.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""))
