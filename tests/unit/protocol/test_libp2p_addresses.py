import pytest

from shoal.protocol.errors import UsageError
from shoal.protocol.libp2p.addresses import MAX_ADDRESSES, binary, dialable, from_binary, full, parse, split, tellable

PEER = "12D3KooWAU47E7LU6riVFVTdpyme9YQJJXJcjKWqny9PBHYKNvd4"
RELAYED = f"/ip4/203.0.113.5/tcp/4001/p2p/{PEER}/p2p-circuit"


def test_what_an_address_says():
    direct = parse("/ip4/203.0.113.5/tcp/4001")
    assert direct is not None
    assert (direct.host, direct.port, direct.tcp, direct.relay) == ("203.0.113.5", 4001, True, "")
    quic = parse("/ip6/2001:db8::1/udp/4001/quic-v1")
    assert quic is not None
    assert (quic.host, quic.tcp) == ("2001:db8::1", False)
    relayed = parse(RELAYED)
    assert relayed is not None
    assert relayed.relay == PEER
    assert parse("/dns4/node.example.org/tcp/4001")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/ip4/203.0.113.5/tcp/0",
        "/ip4/203.0.113.5/tcp/65536",
        "/ip4/203.0.113.5/udp/4001",
        "/ip4/203.0.113/tcp/4001",
        "/ip4/203.0.113.5/tcp/4001/ws",
        f"/ip4/203.0.113.5/tcp/4001/p2p/{PEER}",
        f"/p2p/{PEER}/p2p-circuit",
        "/unix/tmp/socket",
        "/ip6/::1%eth0/tcp/1",
        "/dns4/" + "a" * 300 + "/tcp/4001",
        "/ip4/203.0.113.5/tcp/4001\n",
    ],
)
def test_other_forms_are_not_dialled(text: str):
    assert parse(text) is None
    assert dialable([text], loopback=True) == ()


def test_nobody_makes_this_machine_dial_itself():
    told = ["/ip4/127.0.0.1/tcp/6379", "/ip6/::1/tcp/22", "/dns4/localhost/tcp/22", "/ip4/0.0.0.0/tcp/22"]
    assert dialable([*told, "/ip4/203.0.113.5/tcp/4001"], loopback=False) == ("/ip4/203.0.113.5/tcp/4001",)
    assert dialable(told, loopback=True) == tuple(told[:3])


def test_few_addresses_of_each_peer():
    many = [f"/ip4/203.0.113.5/tcp/{port}" for port in range(1, 50)]
    assert dialable(many, loopback=False) == tuple(many[:MAX_ADDRESSES])
    assert len(tellable(many)) == MAX_ADDRESSES


def test_what_is_told_to_others():
    own = ["/ip4/127.0.0.1/udp/1/quic-v1", RELAYED, "/ip4/192.168.0.2/udp/1/quic-v1", "/ip4/192.168.0.2/tcp/1"]
    assert tellable(own) == ("/ip4/192.168.0.2/tcp/1", "/ip4/192.168.0.2/udp/1/quic-v1", RELAYED)
    assert tellable(["/ip4/127.0.0.1/tcp/1", "/ip4/0.0.0.0/tcp/1"]) == ("/ip4/127.0.0.1/tcp/1",)


def test_full_addresses():
    assert split(full("/ip4/203.0.113.5/tcp/4001", PEER)) == ("/ip4/203.0.113.5/tcp/4001", PEER)
    assert split(full(RELAYED, PEER)) == (RELAYED, PEER)
    for wrong in ("/ip4/203.0.113.5/tcp/4001", f"/p2p/{PEER}", "/ip4/203.0.113.5/tcp/4001/p2p/short", "node.org:4001"):
        with pytest.raises(UsageError, match="is no address of a node"):
            split(wrong)


def test_binary_addresses():
    assert from_binary(binary("/ip4/203.0.113.5/udp/4001/quic-v1")) == "/ip4/203.0.113.5/udp/4001/quic-v1"
    assert from_binary(b"\xff\xff\xff") == ""
    assert binary("/ip4/none/tcp/1") == b""
