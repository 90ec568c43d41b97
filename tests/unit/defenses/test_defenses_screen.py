"""The screen: one verdict on an opened rollout, and what each of its layers stops."""

import random
import string
import tracemalloc
from dataclasses import replace

import pytest
import zstandard
from msgspec.structs import replace as replaced

from shoal.defenses.attacks.base import Outgoing
from shoal.defenses.attacks.lab import MAX_CHARS, TOKENIZER, Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.pointer import Pointer
from shoal.defenses.reputation import key_subject
from shoal.defenses.screen import Screened, screen
from shoal.defenses.verdict import LAYERS, Verdict
from shoal.protocol.manifest import Admission, SwarmLimits
from shoal.protocol.prompts import SHARED
from shoal.protocol.wire import SamplerSettings, encode_rollout, pack_floats, pack_ints

GROUP = ("a", "b", "c", "a")


def passed(lab: Laboratory, rollout, peer: int = 0) -> Screened:
    outcome = lab.receive(peer, lab.sealed(peer, rollout))
    assert isinstance(outcome, Screened), outcome
    return outcome


def refusal(lab: Laboratory, message: Outgoing, peer: int = 0) -> str:
    outcome = lab.receive(peer, message)
    assert isinstance(outcome, Verdict), outcome
    name = f"{outcome.layer}/{outcome.reason}"
    assert lab.counters.get(name) == 1
    return name


def refused(lab: Laboratory, rollout, peer: int = 0) -> str:
    return refusal(lab, lab.sealed(peer, rollout), peer)


def test_an_honest_rollout_passes_whole():
    lab = Laboratory()
    outcome = passed(lab, lab.rollout(GROUP))
    assert outcome.kept == (0, 1, 2, 3)
    assert outcome.prompt == lab.rebuild(lab.round, SHARED, 0)
    assert outcome.rollout.completions == GROUP
    assert lab.counters.get("screen/accepted") == 1


def test_an_own_prompt_of_an_admitted_peer_passes():
    lab = Laboratory()
    prompt = lab.rebuild(lab.round, lab.identities[2].key, 5)
    name = replaced(lab.rollout(GROUP).prompt, scope=1, slot=5, task=prompt.task, seed=prompt.seed, index=prompt.index)
    rollout = lab.rollout(GROUP, prompt=name, prompt_hash=prompt.prompt_hash)
    passed(lab, rollout, 2)
    assert refused(lab, rollout, 1) == "provenance/other_prompt"  # another key's own prompt


def test_no_honest_rollout_is_refused():
    lab = Laboratory(peers=4, limits=SwarmLimits(rollouts_per_key_per_round=10**6))
    rng = random.Random(1)
    letters = string.ascii_letters + string.digits + string.punctuation + "  \n\täß中🙂"
    for number in range(400):
        longest = rng.choice((6, 60, 600))
        texts = ["".join(rng.choices(letters, k=rng.randint(0, longest))) for _ in range(8)]
        outcome = passed(lab, lab.rollout(texts, slot=number % 64), peer=number % 4)
        assert len(outcome.kept) == 8
        lab.now += 1.0


@pytest.mark.parametrize(
    ("blob", "name"),
    [
        (b"", "schema/not_zstd"),
        (b"junk", "schema/not_zstd"),
        (zstandard.compress(b"\xc1"), "schema/not_msgpack"),
        (zstandard.compress(bytes(17 << 20)), "schema/expanded_too_large"),
    ],
)
def test_payloads_that_are_no_rollout_are_their_keys_offence(blob: bytes, name: str):
    lab = Laboratory()
    message = Outgoing(lab.sign(0, lab.header(0, blob)), blob)
    outcome = lab.receive(0, message)
    assert isinstance(outcome, Verdict)
    assert outcome.layer == "schema"
    assert lab.gate.reputation.score(key_subject(lab.identities[0].key)) == 1.0


def test_repeated_malformed_payloads_mute_the_key_and_training_goes_on():
    lab = Laboratory()
    for _ in range(8):
        lab.receive(0, Outgoing(lab.sign(0, lab.header(0, b"junk")), b"junk"))
    assert refused(lab, lab.rollout(GROUP)) == "reputation/muted_key"
    passed(lab, lab.rollout(GROUP), peer=1)


def test_other_bytes_than_were_signed_are_not_the_keys_offence():
    lab = Laboratory()
    message = lab.sealed(0, lab.rollout(GROUP))
    assert refusal(lab, Outgoing(message.announcement, message.blob[:-1] + b"\x00")) == "header/payload_hash"
    message = lab.sealed(0, lab.rollout(GROUP))
    assert refusal(lab, Outgoing(message.announcement, b"")) == "header/payload_length"
    assert lab.gate.reputation.score(key_subject(lab.identities[0].key)) == 0.0


@pytest.mark.parametrize("count", [0, 1, 5, 64, 100])
def test_a_group_of_another_size_is_refused_with_a_reason(count: int):
    lab = Laboratory(limits=SwarmLimits(completions=(4, 4)))
    rollout = lab.rollout(["a"] * count)
    name = refused(lab, rollout)
    assert name in {"schema/completions_out_of_range", "schema/no_completions", "schema/too_many_completions"}
    passed(lab, lab.rollout(GROUP))


def test_a_million_completions_are_refused():
    lab = Laboratory()
    blob = encode_rollout(lab.rollout([""] * 1_000_000))
    assert refusal(lab, Outgoing(lab.sign(0, lab.header(0, blob)), blob)).startswith("schema/")


def test_the_payload_repeats_what_the_header_says():
    lab = Laboratory()
    rollout = lab.rollout(GROUP)
    blob = encode_rollout(rollout)
    lying = lab.header(0, blob, rollout, policy_version=9)
    assert refusal(lab, Outgoing(lab.sign(0, lying), blob)) == "schema/header_mismatch"


@pytest.mark.parametrize("column", [pack_floats([float("nan")] * 4), pack_floats([float("inf")] * 4)])
def test_rewards_that_are_no_numbers_are_refused(column: bytes):
    lab = Laboratory()
    assert refused(lab, lab.rollout(GROUP, rewards=column)) == "schema/not_finite"


@pytest.mark.parametrize(
    ("field", "change", "name"),
    [
        ("prompt", {"seed": 1}, "other_prompt"),
        ("prompt", {"index": 1}, "other_prompt"),
        ("prompt", {"task": "lab/easier"}, "other_prompt"),
        ("prompt", {"slot": 1}, "other_prompt"),
        ("prompt", {"slot": 64}, "slot_out_of_range"),
        ("prompt", {"scope": 1, "slot": 64}, "slot_out_of_range"),
        ("sampler", {"temperature": 2_000_001}, "sampler_out_of_range"),
        ("sampler", {"top_p": 1_000_001}, "sampler_out_of_range"),
        ("sampler", {"max_tokens": 5000}, "sampler_out_of_range"),
        ("sampler", {"max_tokens": 0}, "sampler_out_of_range"),
    ],
)
def test_prompts_are_derived_and_never_trusted(field: str, change: dict, name: str):
    lab = Laboratory()
    honest = lab.rollout(GROUP)
    changed = replaced(getattr(honest, field), **change)
    assert refused(lab, replaced(honest, **{field: changed})) == f"provenance/{name}"


def test_a_substituted_prompt_text_is_refused():
    lab = Laboratory()
    assert refused(lab, lab.rollout(GROUP, prompt_hash=b"h" * 32)) == "provenance/other_prompt_text"


def test_held_out_prompts_are_refused_from_peers():
    lab = Laboratory()

    def careless(round_number: int, scope_key: bytes, slot: int):
        return replace(lab.rebuild(round_number, scope_key, slot), held_out=True)

    lab.context = replace(lab.context, rebuild=careless)
    assert refused(lab, lab.rollout(GROUP)) == "provenance/held_out"


def test_what_cannot_be_rebuilt_is_dropped():
    lab = Laboratory()
    lab.context = replace(lab.context, rebuild=lambda round_number, scope_key, slot: None)
    assert refused(lab, lab.rollout(GROUP)) == "provenance/cannot_rebuild"


def test_other_lineages_are_refused_where_the_manifest_names_some():
    lab = Laboratory()
    manifest = replaced(lab.manifest, lineages=["ab" * 32])
    lab.context = replace(lab.context, manifest=manifest)
    assert refused(lab, lab.rollout(GROUP)) == "provenance/lineage"
    passed(lab, lab.rollout(GROUP, lineage=bytes.fromhex("ab" * 32)))


def test_foreign_own_prompts_do_not_train_in_open_swarms():
    lab = Laboratory()
    lab.context = replace(lab.context, manifest=replaced(lab.manifest, admission=Admission(mode="open")))
    honest = lab.rollout(GROUP)
    own = replaced(honest, prompt=replaced(honest.prompt, scope=1))
    assert refused(lab, own) == "provenance/own_prompt_in_open_swarm"
    passed(lab, honest)


def test_one_bad_row_goes_alone_and_more_than_half_take_the_rollout_along():
    lab = Laboratory()
    outcome = passed(lab, lab.rollout(("a", "b\x1b", "c", "d\u200b")))
    assert outcome.kept == (0, 2)
    assert [verdict.reason for verdict in outcome.verdicts] == ["", "control_character", "", "zero_width"]
    assert lab.counters.get("text/control_character_row") == 1
    assert refused(lab, lab.rollout(("a", "b\x1b", "\x1bc", "d\u200b"))) == "text/control_character"
    assert lab.gate.reputation.score(key_subject(lab.identities[0].key)) == 0.0  # a model may have written it


def test_the_length_cap_is_the_tasks():
    lab = Laboratory()
    assert passed(lab, lab.rollout(("a" * MAX_CHARS, "b" * (MAX_CHARS + 1), "c"))).kept == (0, 2)


def test_ids_of_our_tokenizer_must_decode_to_the_text():
    lab = Laboratory()
    lab.context = replace(lab.context, decode_ids=lambda ids: "".join(map(chr, ids)), vocabulary=128)
    ids = (pack_ints([97]), pack_ints([98]), pack_ints([120]))
    assert passed(lab, lab.rollout(("a", "b", "c"), token_ids=ids)).kept == (0, 1)
    foreign = lab.rollout(("a", "b", "c"), token_ids=ids, tokenizer=b"f" * 32)
    assert passed(lab, foreign).kept == (0, 1, 2)
    assert lab.context.own_tokenizer == TOKENIZER


def test_a_long_text_counts_for_its_first_publisher_only():
    lab = Laboratory()
    texts = [f"first {number * 7919} then {number * 104729} and so the answer is {number}" for number in range(4)]
    passed(lab, lab.rollout(texts), 0)
    assert refused(lab, lab.rollout(texts), 1) == "duplicates/copied_text"
    half = [*texts[:2], "something of its own, long enough to count here", "and another one, of its own as well"]
    assert passed(lab, lab.rollout(half), 2).kept == (2, 3)
    assert lab.counters.get("duplicates/copied_text_row") == 2


@pytest.mark.parametrize(
    ("layer", "rollout"),
    [
        ("text", {"completions": ("\x1ba", "\x1bb", "\x1bc", "d")}),
        ("provenance", {"prompt_hash": b"h" * 32}),
        ("provenance", {"sampler": SamplerSettings(3_000_000, 1_000_000, 0, 64)}),
    ],
)
def test_a_layer_that_is_off_refuses_nothing(layer: str, rollout: dict):
    on, off = Laboratory(), Laboratory(config=DefenseConfig.without([layer]))
    assert refused(on, replaced(on.rollout(GROUP), **rollout)).startswith(f"{layer}/")
    passed(off, replaced(off.rollout(GROUP), **rollout))


def test_with_provenance_off_the_named_prompt_is_taken():
    lab = Laboratory(config=DefenseConfig.without(["provenance"]))
    honest = lab.rollout(GROUP)
    picked = replaced(honest, prompt=replaced(honest.prompt, seed=5, index=6))
    outcome = passed(lab, picked)
    assert (outcome.prompt.seed, outcome.prompt.index) == (5, 6)
    lab.context = replace(lab.context, claimed=None)
    assert refused(lab, picked) == "provenance/cannot_rebuild"


def test_with_every_layer_off_a_rollout_still_has_to_decode():
    lab = Laboratory(config=DefenseConfig.without(set(LAYERS) - {"schema"}))
    passed(lab, lab.rollout(("\x1ba", "b"), rewards=pack_floats([1, 1])))
    assert refusal(lab, Outgoing(lab.sign(0, lab.header(0, b"junk")), b"junk")) == "schema/not_zstd"


def test_the_screen_judges_the_pointer_that_it_is_handed():
    lab = Laboratory()
    message = lab.sealed(0, lab.rollout(GROUP))
    pointer = lab.gate.admit(message.announcement, b"n")
    other = lab.sealed(1, lab.rollout(("x", "y")))
    outcome = screen(pointer, other.blob, lab.context, lab.memory)
    assert isinstance(outcome, Verdict)
    assert outcome.layer == "header"


def test_ids_beyond_what_was_declared_are_never_unpacked():
    """A few bytes of blob can hold millions of ids; as Python numbers they would cost a hundred megabytes."""
    lab = Laboratory()
    ids = pack_ints([300_000] * 60_000)
    blob_of = lab.rollout(["x"] * 64, token_ids=(ids,) * 64)
    sent = lab.sealed(0, blob_of)
    pointer = lab.gate.admit(sent.announcement, b"somebody")
    assert isinstance(pointer, Pointer)
    tracemalloc.start()
    verdict = screen(pointer, sent.blob, lab.context, lab.memory)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(verdict, Verdict)
    assert verdict.reason == "too_many_tokens"
    assert peak < 64 << 20
