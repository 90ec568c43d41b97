"""The network of a node, in figures: joining, sharing, admission, a loop that stays awake, memory.

    python benchmarks/network.py            # everything but the soak, written to docs/results/network.md
    python benchmarks/network.py --soak 1000   # one node of a swarm of two over so many rounds of a second, its memory
    python benchmarks/network.py --quick    # a small part of each, to see that it works; nothing is written

All processes share this machine's cores, so that figures for several nodes are upper bounds.
"""

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from cyclopts import App

from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.pointer import Pointer
from shoal.node.lag import LagMonitor
from shoal.protocol.envelope import Announcement
from shoal.protocol.identity import verify
from shoal.protocol.limits import KIB, MIB
from shoal.protocol.manifest import SwarmLimits

WORKER = Path(__file__).with_name("_network_worker.py")
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "network.md"
SOAK = RESULTS.with_name("soak.md")
SIZES = (64 * KIB, MIB, 16 * MIB)
PROTOTYPE = {4: (33, 56, 494), 8: (106, 161, 790)}  # milliseconds, of the trial that came before this node
PATIENCE = 180.0

app = App(help=__doc__, result_action="return_value")


@dataclass(frozen=True)
class Sharing:
    """A number of processes: seconds until all were connected, milliseconds until all had verified, memory in MiB."""

    processes: int
    start: float
    connected: float
    verified: dict[int, float]
    node_mb: float
    daemon_mb: float


@dataclass(frozen=True)
class Admission:
    """Messages a second through the gate on one core, and bare verifications of signatures."""

    verify: float
    admitted: float
    bad_signature: float
    stale: float
    malformed: float


class Swarm:
    """Worker processes, each with one transport, that are told what to do line by line."""

    def __init__(self, count: int) -> None:
        self.workers: list[subprocess.Popen[str]] = []
        bootstrap = ""
        for number in range(count):
            worker = subprocess.Popen(
                [sys.executable, str(WORKER), str(number), str(count), bootstrap],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.workers.append(worker)
            if number == 0:
                bootstrap = self.hear(0)["address"]
        self.started = [self.hear(0), *(self.hear(n) for n in range(1, count))]

    def hear(self, number: int) -> dict[str, Any]:
        """Return what a worker says next."""
        stream = self.workers[number].stdout
        assert stream is not None
        line = stream.readline()
        if not line:
            raise RuntimeError(f"worker {number} ended with {self.workers[number].wait()}")
        return json.loads(line)

    def tell(self, number: int, **what: Any) -> None:
        """Tell a worker what to do."""
        stream = self.workers[number].stdin
        assert stream is not None
        stream.write(json.dumps(what) + "\n")
        stream.flush()

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            if worker.stdin is not None:
                worker.stdin.close()
        for worker in self.workers:
            worker.wait(60)


def measure_sharing(count: int, sizes: tuple[int, ...], times: int) -> Sharing:
    """Start so many processes, and announce blobs from the first one to all others."""
    swarm = Swarm(count)
    try:
        connected = [swarm.hear(number) for number in range(count)]
        verified: dict[int, float] = {}
        for size in sizes:
            took = []
            for _ in range(times):
                swarm.tell(0, announce=size)
                sent = swarm.hear(0)["at"]
                took.append(max(swarm.hear(number)["at"] for number in range(1, count)) - sent)
            verified[size] = 1000 * statistics.median(took)
        for number in range(count):
            swarm.tell(number, memory=True)
        memory = [swarm.hear(number) for number in range(count)]
    finally:
        swarm.close()
    return Sharing(
        count,
        max(said["seconds"] for said in swarm.started),
        max(said["seconds"] for said in connected),
        verified,
        statistics.median(said["node_mb"] for said in memory),
        statistics.median(said["daemon_mb"] for said in memory),
    )


def measure_admission(count: int) -> Admission:
    """Pass so many messages of each kind through the gate of one node."""
    roomy = SwarmLimits(rollouts_per_key_per_round=2**31, bytes_per_key_per_round=2**31)
    config = DefenseConfig(sender_bytes_per_round=2**40, mute_after=2**31)
    lab = Laboratory(peers=8, config=config, limits=roomy)
    good = [lab.sign(n % 8, lab.header(n % 8, b"x")) for n in range(count)]
    stale = [lab.sign(n % 8, lab.header(n % 8, b"x", round=1)) for n in range(count)]
    forged = [message[:-1] + bytes([message[-1] ^ 1]) for message in good]
    parsed = [Announcement.decode(message) for message in good]

    def verify_all() -> None:
        assert all(verify(a.header.key, a.signature, a.header.encode()) for a in parsed)

    def admit(messages: list[bytes], pointers: bool) -> Callable[[], None]:
        def run() -> None:
            admitted = sum(isinstance(lab.gate.admit(message, b"peer"), Pointer) for message in messages)
            assert admitted == (len(messages) if pointers else 0)

        return run

    def rate(work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        return count / (time.perf_counter() - began)

    return Admission(
        verify=rate(verify_all),
        bad_signature=rate(admit(forged, pointers=False)),
        stale=rate(admit(stale, pointers=False)),
        malformed=rate(admit([b"x" * 238] * count, pointers=False)),
        admitted=rate(admit(good, pointers=True)),
    )


def measure_lag(updates: int) -> dict[str, float]:
    """Return the event loop's lateness in milliseconds while the training thread makes updates."""
    import torch
    import uvloop

    from shoal.node.compute import ThreadCompute
    from shoal.trainer.algorithm import OptimizerSpec, recipe
    from shoal.trainer.batch import Origin, own_rows
    from shoal.trainer.engine import Sampling, make_engine
    from shoal.trainer.model import DEFAULT_MODEL, load_policy
    from shoal.trainer.step import Trainer

    torch.set_num_threads(1)
    policy = load_policy(DEFAULT_MODEL)
    engine, generator = make_engine(policy), torch.Generator().manual_seed(0)
    trainer = Trainer(policy, recipe("grpo", max_tokens=12), OptimizerSpec())
    prompt = "reverse abcd="

    def step() -> None:
        for _ in range(5):
            [group] = engine.sample([prompt], 64, Sampling(max_tokens=12), generator)
            rewards = [float(row % 2) for row in range(64)]
            trainer.update(own_rows(policy.encode_prompt(prompt), group, rewards, Origin(0)))
            engine.refresh()

    async def main() -> dict[str, float]:
        compute, monitor = ThreadCompute(), LagMonitor(samples=100_000, interval=0.005)
        watching = asyncio.create_task(monitor.run())
        for _ in range(updates):
            await compute.run("update", step)
        watching.cancel()
        compute.close()
        return monitor.milliseconds()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def measure_soak(rounds: int) -> list[tuple[int, float]]:
    """Return (round, resident MiB) of one node of two over so many rounds of one second, about every fiftieth."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "local-swarm"))
    from swarm import Place, running

    seen: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), [Place()] * 3, 1) as swarm:
        swarm.wait_until("a first step", lambda: all((node.status() or {}).get("step") for node in swarm.nodes))
        status = swarm.nodes[0].status()
        assert status is not None
        begun = status["swarm"]["round"]
        while (passed := status["swarm"]["round"] - begun) < rounds:
            if not seen or passed - seen[-1][0] >= max(1, rounds // 20):
                seen.append((passed, status["memory_mb"]))
                sys.stdout.write(f"round {passed:5}  {status['memory_mb']:.1f} MiB  steps {status['steps_total']}\n")
                sys.stdout.flush()
            time.sleep(1)
            status = swarm.nodes[0].status() or status
        seen.append((passed, status["memory_mb"]))
    return seen


def soak_page(seen: list[tuple[int, float]]) -> str:
    """Return the memory of a node over many rounds as a page."""
    rows = "\n".join(f"| {round} | {memory:.1f} |" for round, memory in seen)
    return f"""# Memory over many rounds

`python benchmarks/network.py --soak {seen[-1][0]}`: one node of two, and a bootstrap, as processes on this machine,
rounds of one second, other work beside it. Resident memory of the node's process; its caches are bounded, and fill in
the first rounds.

| round | MiB |
|---:|---:|
{rows}
"""


def report(sharings: list[Sharing], admission: Admission, lag: dict[str, float]) -> str:
    """Return the results as a page."""
    lines = [
        "# The network in figures",
        "",
        f"`python benchmarks/network.py` on {os.cpu_count()} cores ({platform.machine()}), all on this machine,",
        "over loopback. Times are medians of seven; the prototype is the trial of the same libraries that came before",
        "this node, on a machine of the same kind.",
        "",
        "From announcement to all verified, by size; memory of one node's process and of its libp2p daemon.",
        "",
        "| processes | started | all connected | 64 KiB | 1 MiB | 16 MiB | node | daemon |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in sharings:
        before = PROTOTYPE.get(s.processes, (0, 0, 0))
        cells = [
            f"{s.verified[size]:.0f} ms" + (f" (prototype {old} ms: {s.verified[size] / old:.2f}x)" if old else "")
            for size, old in zip(s.verified, before, strict=False)
        ]
        cells += ["–"] * (len(SIZES) - len(cells))
        lines.append(
            f"| {s.processes} | {s.start:.1f} s | {s.connected:.1f} s | {' | '.join(cells)} | {s.node_mb:.0f} MiB "
            f"| {s.daemon_mb:.0f} MiB |"
        )
    a = admission
    lines += [
        "",
        "| signed messages a second on one core | | of the bare verify rate |",
        "|---|---|---|",
        f"| bare Ed25519 verification | {a.verify:,.0f} | 1.00 |",
        f"| admitted | {a.admitted:,.0f} | {a.admitted / a.verify:.2f} |",
        f"| refused, bad signature | {a.bad_signature:,.0f} | {a.bad_signature / a.verify:.2f} |",
        f"| refused before the signature, stale | {a.stale:,.0f} | {a.stale / a.verify:.2f} |",
        f"| refused before the signature, malformed | {a.malformed:,.0f} | {a.malformed / a.verify:.2f} |",
        "",
        "How late the event loop is while the training thread samples and updates (target: p99 below 50 ms):",
        f"p50 {lag['p50']:.1f} ms, p99 {lag['p99']:.1f} ms, longest {lag['max']:.1f} ms.",
    ]
    return "\n".join(lines) + "\n"


@app.default
def main(*, quick: bool = False, soak: int = 0) -> int:
    """Measure, print, and write the page."""
    if soak:
        SOAK.write_text(soak_page(measure_soak(soak)), encoding="utf-8")
        return 0
    sharings = [
        measure_sharing(count, SIZES[:1] if quick else SIZES, 2 if quick else 7)
        for count in ((2,) if quick else (4, 8))
    ]
    admission = measure_admission(2_000 if quick else 20_000)
    lag = measure_lag(2 if quick else 20)
    page = report(sharings, admission, lag)
    sys.stdout.write(page)
    if not quick:
        RESULTS.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(app())
