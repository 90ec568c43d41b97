"""A whole swarm on this machine, of real processes: a bootstrap and a few nodes, each with its own home, on loopback.

    python examples/local-swarm/swarm.py --nodes 4 --rounds 40

Everything goes through the `shoal` command, as it would on several machines. In the middle one node is killed
(SIGKILL), and started again from what it had saved.
"""

import argparse
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.node.control import Control, NoNode
from shoal.node.home import Home

SHOAL = Path(sys.executable).with_name("shoal")
START_SECONDS = 240.0  # five Pythons that import torch on two cores, busy with other things
STOP_SECONDS = 60.0
TELL_SECONDS = 15.0
TASKS = "strings"


@dataclass
class Process:
    """One node: its home, how it is started, and the process while it runs."""

    name: str
    home: Path
    arguments: list[str]
    prefix: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its output goes to output.log in its home."""
        with (self.home / "output.log").open("ab") as output:
            command = [*self.prefix, str(SHOAL), "run", "--home", str(self.home), *self.arguments]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def status(self) -> dict[str, Any] | None:
        """Return what it says of itself; None while it cannot be asked."""
        try:
            return Control(Home(self.home).socket, self.home).status()
        except NoNode:
            return None

    def send(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self) -> int | None:
        """Return the exit code, None when it was never started or does not end in time."""
        if self.process is None:
            return None
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def log(self) -> str:
        """Return what it has printed."""
        return (self.home / "output.log").read_text(encoding="utf-8", errors="replace")


@dataclass
class LocalSwarm:
    """A bootstrap and its nodes in one folder."""

    folder: Path
    bootstrap: Process
    nodes: list[Process] = field(default_factory=list[Process])

    @property
    def all(self) -> list[Process]:
        """Return every process of the swarm."""
        return [self.bootstrap, *self.nodes]

    def start(self) -> None:
        """Start the bootstrap and all nodes."""
        for process in self.all:
            process.start()

    def wait_until(self, what: str, condition: Any, seconds: float = START_SECONDS) -> None:
        """Wait until `condition()` holds; raise TimeoutError with the end of every log when it does not."""
        until = time.monotonic() + seconds
        told = time.monotonic()
        while not condition():
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                sys.stdout.write(f"waiting for {what}: {until - told:.0f} s left\n")
                sys.stdout.flush()
            for process in self.all:
                code = process.process.poll() if process.process else None
                if code is not None and code != -signal.SIGKILL:
                    raise RuntimeError(f"{process.name} ended with {code}:\n{process.log()[-4000:]}")
            if time.monotonic() > until:
                logs = "\n".join(f"--- {process.name}\n{process.log()[-2000:]}" for process in self.all)
                raise TimeoutError(f"{what} did not happen in {seconds:.0f} s\n{logs}")
            time.sleep(0.2)

    def stop(self) -> list[int | None]:
        """Ask everybody to leave, nodes first, and return their exit codes."""
        for process in self.nodes:
            process.send(signal.SIGTERM)
        codes = [process.wait() for process in self.nodes]  # one signal each: a second one would end them at once
        self.bootstrap.send(signal.SIGTERM)
        return [*codes, self.bootstrap.wait()]


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def shoal(*arguments: str) -> str:
    """Run one command to its end and return what it printed; raise RuntimeError when it failed."""
    done = subprocess.run([str(SHOAL), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"shoal {' '.join(arguments)} failed with {done.returncode}: {done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Place:
    """Where a process runs: the address that it listens on, and a command that puts it there."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


def make(folder: Path, places: Sequence[Place], round_seconds: int, options: Sequence[str] = ()) -> LocalSwarm:
    """Make homes, keys and a signed manifest for a bootstrap and nodes, one at each place; nothing is started yet."""
    homes = [folder / "bootstrap", *(folder / f"node-{number}" for number in range(len(places) - 1))]
    for home in homes:
        shoal("init", "--home", str(home))
    manifest = folder / "swarm.toml"
    port = free_port()
    peer_id = json.loads(shoal("keys", "show", "--home", str(homes[0]), "--json"))["libp2p"]["transport"]
    shoal(
        *("swarm", "create", "local", "--home", str(homes[0]), "--tasks", TASKS, "--lineage", "default"),
        *("--round-seconds", str(round_seconds), "--out", str(manifest)),
        *("--bootstrap", f"/ip4/{places[0].address}/tcp/{port}/p2p/{peer_id}"),
    )
    common = ["--swarm", str(manifest), "--health-port", "0"]
    processes: list[Process] = []
    for home, place in zip(homes, places, strict=True):
        role = ["--bootstrap-only"] if not processes else ["--checkpoint-every", "3", *options]
        where = ["--host", place.address, "--port", str(free_port() if processes else port)]
        processes.append(Process(home.name, home, [*common, *where, *role], place.prefix))
    return LocalSwarm(folder, processes[0], processes[1:])


@contextlib.contextmanager
def running(
    folder: Path, places: Sequence[Place], round_seconds: int, options: Sequence[str] = ()
) -> Iterator[LocalSwarm]:
    """A swarm that runs inside, and is stopped at the end whatever happens."""
    swarm = make(folder, places, round_seconds, options)
    try:
        swarm.start()
        yield swarm
    finally:
        swarm.stop()


def used(status: dict[str, Any] | None) -> int:
    """Return how many rollouts of peers a node has trained on."""
    return 0 if status is None else int(status["counts"].get("choice/usable", 0))


def line(process: Process) -> str:
    """Return one node in one line."""
    status = process.status()
    if status is None:
        return f"{process.name:10} not there"
    step, swarm = status["step"] or {}, status["swarm"]
    reward = step.get("reward")
    return (
        f"{process.name:10} round {swarm['round']:4}  version {step.get('policy_version', 0):4}  "
        f"reward {'   –' if reward is None else f'{reward:.2f}'}  peers {status['network']['peers']}  "
        f"peers' rollouts used {used(status):4}  {status['memory_mb']:.0f} MB"
    )


def main() -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--round-seconds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the homes go (a temporary folder, removed at the end)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="shoal-local-swarm-"))
    folder.mkdir(parents=True, exist_ok=True)
    say = sys.stdout.write
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the nodes would go on without their swarm
    try:
        with running(folder, [Place()] * (options.nodes + 1), options.round_seconds) as swarm:
            say(f"homes in {folder}; starting {options.nodes} nodes and a bootstrap …\n")
            swarm.wait_until(
                "a first step everywhere", lambda: all((p.status() or {}).get("step") for p in swarm.nodes)
            )
            first = swarm.nodes[0].status()
            assert first is not None
            begun = first["swarm"]["round"]
            killed = False
            while (now := (swarm.nodes[0].status() or first)["swarm"]["round"]) < begun + options.rounds:
                say("\n" + "\n".join(line(process) for process in swarm.nodes) + "\n")
                if not killed and now >= begun + options.rounds // 2:
                    victim = swarm.nodes[-1]
                    say(f"\n{victim.name} is killed, and started again\n")
                    victim.send(signal.SIGKILL)
                    victim.wait()
                    victim.start()
                    killed = True
                time.sleep(options.round_seconds)
            say("\nstopping\n")
        return 0
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
