"""Real processes on real sockets: they find each other, share, learn; one is killed and comes back."""

import json
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from network_namespaces import refusal, wire

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "local-swarm"))

from swarm import LocalSwarm, Place, Process, running, shoal, used

ROUND_SECONDS = 3
SMALL = ("--local", "2", "--external", "2", "--group-size", "4", "--tasks-per-node", "4")


def version(process: Process) -> int:
    status = process.status()
    return 0 if not status or not status["step"] else status["step"]["policy_version"]


def peers(process: Process) -> int:
    status = process.status()
    return 0 if status is None else status["network"]["peers"]


def rounds(process: Process) -> int:
    status = process.status()
    return 0 if not status or not status["step"] else status["step"]["round"]


def share(swarm: LocalSwarm, more: int = 1) -> None:
    """Wait until every node has used `more` further rollouts of peers."""
    before = [used(node.status()) for node in swarm.nodes]
    swarm.wait_until(
        "sharing",
        lambda: all(used(node.status()) >= base + more for node, base in zip(swarm.nodes, before, strict=True)),
    )


def test_nodes_find_each_other_share_and_learn_and_one_is_killed_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path, [Place()] * 4, ROUND_SECONDS, SMALL) as swarm:
        swarm.wait_until("meeting", lambda: all(peers(node) >= 2 for node in swarm.nodes))
        share(swarm, 2)
        victim = swarm.nodes[-1]
        swarm.wait_until("a checkpoint", lambda: any((victim.home / "checkpoints").glob("step-*")))
        key, reached = victim.status()["key"], version(victim)
        victim.send(signal.SIGKILL)
        victim.wait()
        victim.start()
        swarm.wait_until("coming back", lambda: version(victim) > 0)
        back = victim.status()
        assert back["key"] == key
        assert back["step"]["policy_version"] > reached - 4, "it went on from a checkpoint, not from the beginning"
        share(swarm)
        statuses = [node.status() for node in swarm.nodes]
        codes = swarm.stop()
    assert codes == [0, 0, 0, 0]
    for status in statuses:
        assert status["failures_total"] == 0
        assert not [name for name in status["counts"] if name.startswith("header/version_fell")]
    ledger = sqlite3.connect(f"file:{victim.home / 'shoal.db'}?mode=ro", uri=True)
    rounds = ledger.execute("SELECT round, number, COUNT(*) FROM passes GROUP BY round, number").fetchall()
    assert rounds
    assert all(count == 1 for _, _, count in rounds), "no round was entered twice"
    replayed = json.loads(shoal("replay", "--home", str(victim.home), "--last", "1", "--json"))
    assert replayed


@pytest.mark.skipif(bool(refusal()), reason=refusal() or "network namespaces are there")
def test_a_node_that_is_cut_off_trains_alone_and_is_one_of_the_swarm_again_when_healed(tmp_path: Path) -> None:
    with wire(4, delay=0.02, jitter=0.01, loss=0.01) as (cable, made):
        places = [Place(address, ("ip", "netns", "exec", name)) for name, address in made]
        with running(tmp_path, places, ROUND_SECONDS, SMALL) as swarm:
            swarm.wait_until("meeting", lambda: all(peers(node) >= 2 for node in swarm.nodes))
            share(swarm)
            lonely = swarm.nodes[-1]
            cable.cut.add(3)
            before = rounds(lonely)
            swarm.wait_until("training alone", lambda: rounds(lonely) >= before + 5)
            alone = used(lonely.status())
            swarm.wait_until("training alone for longer", lambda: rounds(lonely) >= before + 8)
            assert used(lonely.status()) == alone, "nothing comes through a cut wire"
            cable.cut.clear()
            share(swarm)
            assert swarm.stop() == [0, 0, 0, 0]
        assert cable.lost > 0
