"""Options of the bridge: off by default, and checked before anything is loaded."""

from dataclasses import replace

import pytest

from shoal.node.bridge.options import BridgeOptions, check_bridge
from shoal.protocol.errors import UsageError

ADDRESS = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWBvUPDdVVyeDpXbe8d2TVQx5zV6kQk3kY5FNXUoK6K9dV"
GOOD = BridgeOptions(bridge_read=True, bridge_bootstrap=(ADDRESS,))


def test_there_is_no_bridge_by_default() -> None:
    check_bridge(BridgeOptions())
    assert not BridgeOptions().enabled
    assert BridgeOptions().bridge_share == 0.125


def test_good_options_pass() -> None:
    check_bridge(GOOD)
    check_bridge(replace(GOOD, bridge_write=True, bridge_data="x.jsonl", bridge_data_sha256="a" * 64))
    check_bridge(replace(GOOD, bridge_bootstrap=(ADDRESS, "/dns4/a.example/udp/1/quic-v1" + ADDRESS[-57:])))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bridge_bootstrap": ()}, "needs an address"),
        ({"bridge_read": False, "bridge_write": True}, "needs --bridge-read"),
        ({"bridge_bootstrap": ("192.0.2.1:31337",)}, "not a multiaddr"),
        ({"bridge_bootstrap": (ADDRESS.rpartition("/p2p/")[0],)}, "not a multiaddr"),
        ({"bridge_bootstrap": (ADDRESS + ",/ip4/1.2.3.4",)}, "not a multiaddr"),
        ({"bridge_share": 0.0}, "--bridge-share"),
        ({"bridge_share": 0.51}, "--bridge-share"),
        ({"bridge_share": float("nan")}, "--bridge-share"),
        ({"bridge_peers": 0}, "--bridge-peers"),
        ({"bridge_peers": 65}, "--bridge-peers"),
        ({"bridge_start_round": -1}, "--bridge-start-round"),
        ({"bridge_max_age": 5}, "--bridge-max-age"),
        ({"bridge_completions": 1}, "--bridge-completions"),
        ({"bridge_data_sha256": "a" * 64}, "--bridge-data"),
        ({"bridge_data": "x.jsonl", "bridge_data_sha256": "abc"}, "64 hexadecimal digits"),
    ],
)
def test_each_mistake_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_bridge(replace(GOOD, **changes))
