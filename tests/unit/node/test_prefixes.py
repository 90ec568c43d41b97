"""Where peers live: connections before claims, and claims apart from them."""

from dataclasses import dataclass, field

from shoal.node.prefixes import Prefixes


@dataclass
class Seen:
    key: bytes
    addresses: tuple[str, ...] = ()
    seen_at: tuple[str, ...] = field(default=())


def look(prefixes: Prefixes, known: list[Seen], *now: Seen) -> Prefixes:
    known[:] = now
    prefixes.look()
    return prefixes


def test_connections_count_before_claims_and_a_claim_moves_nobody_in_with_a_victim() -> None:
    known: list[Seen] = []
    prefixes = Prefixes(lambda: known)  # type: ignore[arg-type, return-value]
    victim = Seen(b"v", ("/ip4/9.9.9.9/tcp/1",), ("/ip4/8.8.8.8/tcp/47700",))
    framer = Seen(b"f", ("/ip4/8.8.8.9/tcp/1",))
    look(prefixes, known, victim, framer, Seen(b"n"))
    assert prefixes(b"v") == "8.8.8.0/24"
    assert prefixes(b"f") == "8.8.8.0/24 (claimed)"
    assert (prefixes(b"n"), prefixes(b"stranger")) == (None, None)


def test_only_direct_public_addresses_count() -> None:
    known: list[Seen] = []
    prefixes = Prefixes(lambda: known)  # type: ignore[arg-type, return-value]
    look(
        prefixes,
        known,
        Seen(b"relayed", seen_at=("/ip4/8.8.8.8/tcp/1/p2p/12D3KooWRelay/p2p-circuit",)),
        Seen(b"at home", ("/ip4/192.168.1.2/tcp/1", "/dns4/example.org/tcp/1", "/ip4/127.0.0.1/tcp/1")),
        Seen(b"second", ("/ip4/10.0.0.1/tcp/1", "/ip6/2a00:1450:4001::5/udp/1/quic-v1")),
        Seen(b"rubbish", ("", "/", "/ip4", "/ip4/", "ip4/8.8.8.8")),
    )
    assert [prefixes(key) for key in (b"relayed", b"at home", b"rubbish")] == [None] * 3
    assert prefixes(b"second") == "2a00:1450:4001::/48 (claimed)"


def test_where_a_peer_was_seen_holds_for_as_long_as_it_is_known() -> None:
    known: list[Seen] = []
    prefixes = Prefixes(lambda: known)  # type: ignore[arg-type, return-value]
    look(prefixes, known, Seen(b"a", seen_at=("/ip4/8.8.8.8/tcp/1",)))
    look(prefixes, known, Seen(b"a", ("/ip4/9.9.9.9/tcp/1",)))
    assert prefixes(b"a") == "8.8.8.0/24"
    look(prefixes, known, Seen(b"a", seen_at=("/ip4/1.1.1.1/tcp/1",)))
    assert prefixes(b"a") == "1.1.1.0/24"
    look(prefixes, known)
    look(prefixes, known, Seen(b"a"))
    assert prefixes(b"a") is None
