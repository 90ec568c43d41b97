import hashlib
import struct
from typing import Any

import msgspec
import pytest

from shoal.protocol.errors import BadSignature, UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import Admission, Manifest, SwarmLimits, TaskEntry, check_follows, check_successor

PEER = Identity.from_seed(bytes([5]) * 32)
OTHER = Identity.from_seed(bytes([6]) * 32)


def test_signed_and_read_back(manifest: Manifest, founder: Identity):
    signed = manifest.sign(founder)
    signed.verify()
    again = Manifest.from_toml(signed.to_toml())
    assert again == signed
    again.verify()


def test_the_id_is_the_hash_of_founder_genesis_and_name(manifest: Manifest, founder: Identity):
    by_hand = hashlib.sha256(b"shoal/swarm/1" + founder.key + struct.pack(">Q", 1_700_000_000) + b"vectors").digest()
    assert manifest.swarm_id == by_hand
    assert msgspec.structs.replace(manifest, revision=4, round_seconds=5).swarm_id == by_hand
    for fields in ({"name": "other"}, {"genesis": 1}, {"founder": PEER.key.hex()}):
        assert msgspec.structs.replace(manifest, **fields).swarm_id != by_hand


def test_every_field_is_signed(manifest: Manifest, founder: Identity):
    signed = manifest.sign(founder)
    other: dict[str, Any] = {
        "name": "other",
        "founder": PEER.key.hex(),
        "genesis": 1,
        "round_seconds": 61,
        "tasks": [TaskEntry(name="strings/reverse")],
        "lineages": ["00" * 32],
        "limits": SwarmLimits(max_lag=9),
        "admission": Admission(mode="invite"),
        "bootstraps": ["/ip4/10.0.0.1/tcp/1"],
        "protocol_versions": [1, 2],
        "revision": 1,
        "effective_round": 1,
        "revoked": [PEER.key.hex()],
        "signature": "00" * 64,
    }
    assert set(other) == set(Manifest.__struct_fields__)
    for name, value in other.items():
        with pytest.raises(BadSignature):
            msgspec.structs.replace(signed, **{name: value}).verify()


@pytest.mark.parametrize("signature", ["", "zz", "00" * 63])
def test_a_signature_of_another_form(signature: str, manifest: Manifest):
    with pytest.raises(BadSignature):
        msgspec.structs.replace(manifest, signature=signature).verify()


def test_only_the_founder_signs(manifest: Manifest):
    with pytest.raises(ValueError, match="sealed only"):
        manifest.sign(PEER)


def test_people_write_decimal_numbers(manifest: Manifest):
    text = manifest.to_toml()
    assert "temperature = [\n    0.0,\n    2.0,\n]" in text
    changed = text.replace("temperature = [\n    0.0,\n    2.0,\n]", "temperature = [0.7, 1]")
    assert Manifest.from_toml(changed).limits.temperature == (700_000, 1_000_000)


def test_what_is_left_out_has_a_default(founder: Identity):
    text = f'name = "small"\nfounder = "{founder.key.hex()}"\ngenesis = 5\nround_seconds = 30\n[[tasks]]\nname = "t"\n'
    manifest = Manifest.from_toml(text)
    assert manifest.limits == SwarmLimits()
    assert manifest.limits.temperature == (0, 2_000_000)
    assert (manifest.limits.max_age_rounds, manifest.limits.max_lag) == (4, 8)
    assert manifest.operator_of(PEER.key) == PEER.key.hex()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("revision", "revisoin", "revisoin"),
        ("max_lag", "max_lags", "max_lags"),
        ("weight = 3", "wait = 3", "wait"),
        ("genesis = 1700000000", "genesis = true", "genesis"),
        ("genesis = 1700000000", "genesis = 1.5", "genesis"),
        ("genesis = 1700000000", "genesis = -1", "genesis"),
        ("round_seconds = 60", "round_seconds = 0", "round_seconds"),
        ('mode = "open"', 'mode = "closed"', "mode"),
        ("temperature = [\n    0.0", "temperature = [\n    nan", "temperature"),
        ("temperature = [\n    0.0", "temperature = [\n    true", "temperature"),
        ("temperature = [\n    0.0", "temperature = [\n    2.5", "temperature"),
        ("top_p = [\n    0.0,\n    1.0,\n]", "top_p = 1", "top_p"),
        ("completions = [\n    2", "completions = [\n    65", "completions"),
        ("shard_bits = 0", "shard_bits = 13", "shard_bits"),
        ("shards_per_node = 1", "shards_per_node = 17", "shards_per_node"),
        ("shards_per_node = 1", "shards_per_node = 2", "shards of limits.shard_bits 0"),
        ("bootstraps = []", 'bootstraps = ["10.0.0.1:47700"]', "multiaddr"),
        ("bootstraps = []", 'bootstraps = ["/ip4/10.0.0.1\\n"]', "multiaddr"),
        ("bootstraps = []", f"bootstraps = {['/dns/a/tcp/1'] * 65}", "64 bootstraps"),
        ("shared_slots = 64\nown_slots = 64", "shared_slots = 0\nown_slots = 0", "slots"),
        ("ratio = 0.5", "ratio = inf", "canonical"),
        ('name = "rg/chain_sum"', 'name = "strings/reverse"', "twice"),
        ('name = "rg/chain_sum"', 'name = "two words"', "name"),
        ("weight = 3", "weight = -1", "weight"),
        ("lineages = []", 'lineages = ["AB"]', "lineages"),
        ("revoked = []", 'revoked = ["AB"]', "revoked"),
        ("revoked = []", f'revoked = ["{"00" * 32}"]', "key_small_order"),
        ("name", "name = [", "TOML"),
    ],
    ids=lambda value: value[:24],
)
def test_mistakes_are_named(old: str, new: str, named: str, manifest: Manifest):
    text = manifest.to_toml()
    assert old in text
    with pytest.raises(UsageError, match=named):
        Manifest.from_toml(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("evil", "named"),
    [
        ("a" + ".a" * 60_000 + " = 1", "dots"),
        ("x = {b = '''\n''', a" + " . a" * 20_000 + " = 1}", "dots"),
        ("[a" + ".'a'" * 30_000 + "]", "dots"),
        ("x = " + "[" * 50_000, "TOML"),
        ("x = " + "9" * 5000, "TOML"),
        ("#" * 140_000, "characters"),
        ("x = " + "{a = " * 20_000, "TOML"),
    ],
    ids=lambda value: value[:12],
)
def test_a_hostile_text_is_refused_at_once(evil: str, named: str, manifest: Manifest):
    """Keys of many parts take a TOML parser quadratic time: 60,000 ran for minutes."""
    with pytest.raises(UsageError, match=named):
        Manifest.from_toml(evil + "\n" + manifest.to_toml())


@pytest.mark.parametrize("evil", ['"\\u001b[2J" = 1', '"\x9b2J" = 1', "x = '\x1b'", '"\\u202e" = 1'])
def test_a_message_about_a_foreign_text_is_safe_to_print(evil: str, manifest: Manifest):
    with pytest.raises(UsageError) as caught:
        Manifest.from_toml(evil + "\n" + manifest.to_toml())
    assert str(caught.value).isprintable()


def test_deep_tables_in_a_task_are_a_usage_error(manifest: Manifest):
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"a": deep}
    with pytest.raises(UsageError, match="canonical"):
        msgspec.structs.replace(manifest, tasks=[TaskEntry(name="t", config=deep)]).check()


def test_a_founder_of_small_order_is_refused(manifest: Manifest):
    with pytest.raises(UsageError, match="key_small_order"):
        msgspec.structs.replace(manifest, founder="01" + "00" * 31).check()
    with pytest.raises(UsageError, match="founder"):
        msgspec.structs.replace(manifest, founder="short").check()


def test_who_is_admitted(manifest: Manifest):
    operators = {"ada": [PEER.key.hex()], "bob": []}

    def with_mode(mode: Any, revoked: list[str] | None = None) -> Manifest:
        admission = Admission(mode=mode, operators=operators)
        return msgspec.structs.replace(manifest, admission=admission, revoked=revoked or [])

    for mode in ("invite", "allow-list"):
        assert with_mode(mode).operator_of(PEER.key) == "ada"
        assert with_mode(mode).operator_of(OTHER.key) is None
    assert with_mode("open").operator_of(PEER.key) == "ada"
    assert with_mode("open").operator_of(OTHER.key) == OTHER.key.hex()
    for mode in ("open", "invite"):
        revoking = with_mode(mode, [PEER.key.hex()])
        assert revoking.operator_of(PEER.key) is None
        assert revoking.is_revoked(PEER.key)
        assert not revoking.is_revoked(OTHER.key)


@pytest.mark.parametrize(
    "operators",
    [
        {"ada": [PEER.key.hex()], "bob": [PEER.key.hex()]},
        {OTHER.key.hex(): [PEER.key.hex()]},
        {"": []},
        {"ada": ["x"]},
        {"a" * 65: []},
        {"ada\x1b[2J": []},
    ],
)
def test_operators_that_could_be_confused(operators: dict[str, list[str]], manifest: Manifest):
    with pytest.raises(UsageError):
        msgspec.structs.replace(manifest, admission=Admission(mode="invite", operators=operators)).check()


def later(manifest: Manifest, **fields: Any) -> Manifest:
    return msgspec.structs.replace(manifest, **({"revision": 1, "effective_round": 11} | fields))


def test_what_may_follow_a_revision(manifest: Manifest):
    check_successor(manifest, later(manifest, limits=SwarmLimits(max_lag=4, shard_bits=2)), current_round=10)
    for fields in ({"revision": 0}, {"effective_round": 10}, {"name": "other"}):
        with pytest.raises(UsageError):
            check_successor(manifest, later(manifest, **fields), current_round=10)


def test_a_node_that_was_cut_off_takes_a_revision_whose_round_is_over(manifest: Manifest):
    check_follows(manifest, later(manifest, effective_round=1))
    with pytest.raises(UsageError, match="not above"):
        check_follows(manifest, later(manifest, revision=0))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"genesis": 1}, "another swarm"),
        ({"round_seconds": 30}, "round_seconds"),
        ({"tasks": [TaskEntry(name="strings/reverse", weight=4)]}, "tasks"),
        ({"lineages": ["00" * 32]}, "lineage"),
    ],
)
def test_what_a_running_node_cannot_take_over_is_refused(fields: dict[str, Any], named: str, manifest: Manifest):
    with pytest.raises(UsageError, match=named):
        check_follows(manifest, later(manifest, **fields))


def test_lineages_are_added_and_never_taken_away(manifest: Manifest):
    one = msgspec.structs.replace(manifest, lineages=["00" * 32])
    check_follows(one, later(one, lineages=["11" * 32, "00" * 32]))
    check_follows(one, later(one, lineages=[]))  # any
    with pytest.raises(UsageError, match="lineage"):
        check_follows(one, later(one, lineages=["11" * 32]))
