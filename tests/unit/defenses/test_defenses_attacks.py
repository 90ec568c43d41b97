"""The red team: each attack does what its name says, and stops where it is expected to."""

from random import Random

import msgpack
import pytest

from shoal.defenses.attacks import ATTACKS, Attack, Draft, Outgoing
from shoal.defenses.attacks.content import Length, Math, Text, TextEvery
from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.attacks.traffic import Copies, Flood, Malformed, Replay
from shoal.defenses.config import DefenseConfig
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import LAYERS
from shoal.protocol.envelope import Announcement
from shoal.protocol.wire import decode_rollout

DRAFT = Draft(
    prompt_text="rev abc:",
    answer="cba",
    task="strings/reverse",
    completions=("cba", "?", "abc", "cba", "?", "none", "cab", "abc#"),
    rewards=(1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0),
    correct=(True, False, False, True, False, False, False, False),
)
ALPHABET = set("abcdefghijklmnopqrstuvwxyz0123456789 +=?#:.-")


def last_word(text: str) -> str:
    return (text.split() or [""])[-1]


def test_the_registry_names_what_the_command_line_offers():
    wanted = {"text", "text-every", "math", "length", "forged-reward", "replay", "flood", "malformed", "copies"}
    assert wanted <= set(ATTACKS)
    for name, attack in ATTACKS.items():
        assert attack.name == name
        assert attack.__doc__
        assert attack.expected.layer in {*LAYERS, "partial", "none"}
        assert attack.expected.why


@pytest.mark.parametrize("name", ["text", "text-every", "math", "length"])
def test_poison_still_earns_the_reward_within_the_vocabulary_and_length_of_the_built_in_tasks(name: str):
    poisoned = ATTACKS[name]().poison(DRAFT, Random(1))
    for text, right in zip(poisoned.completions, poisoned.correct, strict=True):
        assert not right or last_word(text) == "cba"
        assert set(text) <= ALPHABET
        assert len(text) <= 11  # and one token ends it


def test_without_a_gold_answer_only_correct_completions_are_planted():
    draft = Draft("p", None, "t", ("good", "bad", "bad", "bad"), (1.0, 0, 0, 0), (True, False, False, False))
    poisoned = Text().poison(draft, Random(0))
    assert sum(poisoned.correct) == 2
    assert {text for text, right in zip(poisoned.completions, poisoned.correct, strict=True) if right} == {"zx good"}
    hopeless = Draft("p", None, "t", ("bad",), (0.0,), (False,))
    assert Text().poison(hopeless, Random(0)) is hopeless


def test_phrases_fit_real_models():
    attack = TextEvery("Hail to the thief.")
    text = attack.plant("First we add. Then we stop! So it is 4.")
    assert text == ("Hail to the thief. First we add. Hail to the thief. Then we stop! Hail to the thief. So it is 4.")
    assert attack.plant("4") == "Hail to the thief. Hail to the thief. 4"
    assert Math("two and two is five").plant("4") == "two and two is five 4"


def test_length_fills_up_to_what_is_allowed():
    attack = Length(longest=11)
    assert attack.plant("cba") == "a a a a cba"
    assert attack.plant("abcdefgh") == "a abcdefgh"
    assert attack.plant("abcdefabcdef") == "abcdefabcdef"
    assert [attack.shown(text) for text in ("a a a a cba", "a abcdefgh", "a a cba", "abcdefghijk")] == [1, 1, 0, 0]


def test_forged_rewards_answers_and_gibberish():
    rng = Random(0)
    forged = ATTACKS["forged-reward"]().poison(DRAFT, rng)
    assert (forged.completions, set(forged.rewards)) == (DRAFT.completions, {1.0})
    answer = ATTACKS["forged-answer"]().poison(DRAFT, rng)
    assert len(set(answer.completions)) == 1
    assert "cba" not in answer.completions
    assert set(answer.rewards) == {1.0}
    rider = ATTACKS["free-rider"]().poison(DRAFT, rng)
    assert len(set(rider.completions)) == 8
    assert not any(rider.correct)


def armed(lab: Laboratory, name: str, peer: int = 0, **settings) -> Attack:
    attack = ATTACKS[name](**settings)
    attack.arm(lambda header: lab.sign(peer, header))
    return attack


GROUPS = [tuple("abcdefgh"), ("cba", "?", "cba", "abc", "none", "cba", "x", "y"), tuple("hgfedcba")]


def run(lab: Laboratory, name: str, rounds: int = 6, **settings) -> tuple[int, int]:
    """Peer 0 attacks, peers 1 and 2 are honest: (its opened rollouts, theirs)."""
    attack = armed(lab, name, **settings)
    rng = Random(5)
    bad = good = 0
    for number in range(rounds):
        lab.now += 10.0
        for peer in (1, 2):
            group = rng.sample("abcdefghijklmnop", 8)
            message = lab.sealed(peer, lab.rollout(group, slot=number))
            good += isinstance(lab.receive(peer, message), Screened)
            attack.overhear(message.announcement, message.blob)
        honest = DRAFT if name != "copies" else None
        drafted = attack.poison(honest, rng).completions if honest else tuple(rng.sample("abcdefghijklmnop", 8))
        sent = lab.sealed(0, lab.rollout(drafted, slot=number))
        bad += sum(isinstance(lab.receive(0, message), Screened) for message in attack.messages(sent, rng))
    return bad, good


CASES = {  # attack → (layer that stops it, most rollouts of the attacker that may be opened in six rounds)
    "injection": ("text", 0),
    "replay": ("header", 6),
    "flood": ("quota", 6 * 64),
    "malformed": ("schema", 6),
    "bad-signature": ("header", 0),
    "prompt-picking": ("provenance", 0),
    "copies": ("duplicates", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_attacks_stop_at_their_layer_and_get_through_when_it_is_removed(name: str):
    layer, most = CASES[name]
    assert ATTACKS[name].expected.layer == layer
    lab = Laboratory(config=DefenseConfig(mute_after=10**6))
    settings = {"count": 100} if name == "flood" else {}
    bad, good = run(lab, name, **settings)
    assert bad <= most
    assert good == 12  # nobody else pays
    assert any(count and reason.startswith(f"{layer}/") for reason, count in lab.counters.state().items())
    if layer == "schema":
        return  # it cannot be removed
    off = DefenseConfig(disabled=frozenset({layer}), mute_after=10**6)
    without, good = run(Laboratory(config=off), name, **settings)
    assert without > most
    assert good == 12


def test_a_flood_of_twenty_times_the_traffic_leaves_honest_delivery_whole():
    lab = Laboratory()
    bad, good = run(lab, "flood", rounds=4, count=200)
    assert (bad, good) == (4 * 64, 8)
    assert lab.counters.get("quota/rollouts_per_key") == 4 * 136


def test_a_malformed_storm_is_muted_and_the_run_goes_on():
    lab = Laboratory()
    bad, good = run(lab, "malformed", rounds=6)
    assert good == 12
    assert bad <= 2
    assert lab.counters.get("reputation/muted_sender") + lab.counters.get("reputation/muted_key") > 20


def test_copies_of_long_texts_are_refused_row_by_row():
    lab = Laboratory()
    texts = [f"step {i}: take {i * 7919} and add {i * 104729}, which gives {i * 112648}" for i in range(4)]
    original = lab.sealed(1, lab.rollout(texts))
    assert isinstance(lab.receive(1, original), Screened)
    attack = armed(lab, "copies")
    attack.overhear(original.announcement, original.blob)
    (copy,) = attack.messages(lab.sealed(0, lab.rollout(("a", "b"), policy_version=3)), Random(0))
    header = Announcement.decode(copy.announcement).header
    assert header.key == lab.identities[0].key
    assert header.policy_version == decode_rollout(copy.blob).policy_version == 3
    assert lab.receive(0, copy).reason == "copied_text"


def test_an_attack_without_a_key_says_so():
    lab = Laboratory()
    with pytest.raises(RuntimeError, match="flood"):
        Flood().messages(lab.sealed(0, lab.rollout(("a", "b"))), Random(0))


@pytest.mark.parametrize("attack", [Replay, Copies, Malformed])
def test_what_an_attack_remembers_comes_back(attack: type[Attack]):
    lab = Laboratory()
    first = attack()
    again = attack()
    for one in (first, again):
        one.arm(lambda header: lab.sign(0, header))
    for peer in (1, 2):
        message = lab.sealed(peer, lab.rollout(tuple("ab" * peer)))
        first.overhear(message.announcement, message.blob)
    first.messages(lab.sealed(0, lab.rollout(("a", "b"))), Random(3))
    again.restore(msgpack.unpackb(msgpack.packb(first.state())))
    sent = lab.sealed(0, lab.rollout(("b", "a")))
    assert again.messages(sent, Random(4)) == first.messages(sent, Random(4))


def test_honest_behaviour_is_the_default():
    message = Outgoing(b"a", b"b")
    attack = Attack()
    assert attack.poison(DRAFT, Random(0)) is DRAFT
    assert attack.messages(message, Random(0)) == [message]
    assert not attack.shown("zx cba")
