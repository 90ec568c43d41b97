"""What a node can be told is judged whole, before anything is loaded; a refusal says which flag and what to do."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import run

import pytest

from shoal.node.bridge.options import BridgeOptions
from shoal.node.config import Learning, Mixing
from shoal.node.options import HealthOptions, LifeOptions, NetworkOptions, RunConfig, check
from shoal.protocol.errors import UsageError

PEER = "12D3KooWKRyzVWW6ChFjQjK4miCty85Niy48tpPV95XdKu1BcvMA"
FOUND = f"/ip4/192.0.2.1/tcp/47700/p2p/{PEER}"


def network(**settings: object) -> RunConfig:
    return RunConfig(network=replace(NetworkOptions(), **settings))


def life(**settings: object) -> RunConfig:
    return RunConfig(life=replace(LifeOptions(), **settings))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (RunConfig(observe=True, rollouts_only=True), "--rollouts-only and --observe exclude each other"),
        (RunConfig(bootstrap_only=True, observe=True), "--bootstrap-only and --observe exclude each other"),
        (RunConfig(swarm=""), "--swarm '': give a file"),
        (RunConfig(swarm="ftp://example.org/x"), "--swarm 'ftp://.*give a file"),
        (RunConfig(swarm="shoal://12@/ip4/192.0.2.1/tcp/1"), "--swarm .*no link to a swarm"),
        (RunConfig(mixing=Mixing(local=3)), "do not divide into --minibatches 2: choose a divisor of 7"),
        (RunConfig(mixing=Mixing(group_size=1)), "--group-size 1"),
        (RunConfig(mixing=Mixing(local=0, external=0)), "nothing to train on"),
        (RunConfig(mixing=Mixing(mix="joined", external=0)), "--mix joined needs"),
        (RunConfig(mixing=Mixing(shared_prompts=9)), "--shared-prompts 9"),
        (RunConfig(learning=Learning(minibatches=3)), "do not divide into --minibatches 3"),
        (RunConfig(learning=Learning(lr=0.0)), "--lr 0.0"),
        (RunConfig(learning=Learning(device="gpu")), "--device 'gpu': give cpu"),
        (network(host="localhost"), "--host 'localhost': give an IP address"),
        (network(host="fe80::1%eth0"), "--host"),
        (network(port=0), "--port 0"),
        (network(port=65536), "--port 65536"),
        (network(port=47701), "--port and --health-port are both 47701"),
        (network(bootstrap=("127.0.0.1:5",)), "--bootstrap '127.0.0.1:5'.*write /ip4/"),
        (network(bootstrap=("/ip4/127.0.0.1/tcp/5",)), "--bootstrap .*PEER-ID"),
        (network(bootstrap=(FOUND, f"/ip4/192.0.2.999/tcp/5/p2p/{PEER}")), "--bootstrap '/ip4/192.0.2.999"),
        (network(bootstrap=(f"/ip4/192.0.2.1/tcp/70000/p2p/{PEER}",)), "--bootstrap"),
        (network(bootstrap=("/ip4/192.0.2.1/tcp/5/p2p/12D3KooW",)), "--bootstrap"),
        (network(announce=("tcp/5",)), "--announce 'tcp/5'"),
        (network(announce=(FOUND,)), "--announce .*without a peer id"),
        (network(announce=("/ip4/0.0.0.0/tcp/5",)), "--announce"),
        (RunConfig(health=HealthOptions(health_host=" ")), "--health-host is empty"),
        (RunConfig(health=HealthOptions(health_port=-1)), "--health-port -1"),
        (life(passes=0), "--passes 0"),
        (life(passes=17), "--passes 17"),
        (life(wait_fraction=float("nan")), "--wait-fraction nan"),
        (life(checkpoint_every=0), "--checkpoint-every 0"),
        (life(failures=0), "--failures 0"),
        (life(keep_ledger_rounds=0), "--keep-ledger-rounds 0"),
        (life(keep_blobs_mb=0), "--keep-blobs-mb 0"),
        (life(threads=0), "--threads 0"),
        (life(threads=1000), "--threads 1000"),
        (life(until_round=-1), "--until-round -1"),
        (life(defenses_off=("tex",)), "unknown defence layer 'tex'"),
        (RunConfig(bridge=BridgeOptions(bridge_read=True)), "--bridge-read needs an address"),
    ],
)
def test_settings_are_checked_whole_before_anything_is_loaded(config: RunConfig, expected: str) -> None:
    """Failure 9."""
    with pytest.raises(UsageError, match=expected):
        check(config)


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(),
        RunConfig(swarm="swarm.toml", bootstrap_only=True),
        RunConfig(swarm="https://example.org/swarm.toml"),
        RunConfig(swarm=f"shoal://{'0' * 64}@{FOUND}"),
        RunConfig(learning=Learning(device="cuda:1")),
        RunConfig(mixing=Mixing(external=0)),
        network(host="::", bootstrap=(FOUND, f"/dns4/example.org/udp/47700/quic-v1/p2p/{PEER}")),
        network(announce=("/ip4/203.0.113.7/tcp/47700", "/dns6/example.org/udp/9/quic-v1")),
        RunConfig(health=HealthOptions(health_port=0)),
        life(defenses_off=("all",), wait_fraction=0.0, until_round=0),
    ],
)
def test_what_can_be_is_let_through(config: RunConfig) -> None:
    check(config)


def test_checking_loads_neither_tensors_nor_a_network() -> None:
    code = (
        "import sys\nfrom shoal.node.options import NetworkOptions, RunConfig, check\n"
        f"check(RunConfig(swarm='https://example.org/s', network=NetworkOptions(bootstrap=({FOUND!r},))))\n"
        "sys.exit(' '.join({'torch', 'hivemind', 'libp2p', 'transformers', 'trio'} & set(sys.modules)) or None)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / ".ns")}
    done = run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
