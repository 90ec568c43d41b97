"""The default tokenizer gives back every text of its alphabet, and never a special token for one."""

from functools import cache

from hypothesis import example, given
from hypothesis import strategies as st

from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy
from shoal.trainer.tasks.strings import KINDS

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 =+-*/?#:.,_<>!\n"
PIECES = st.one_of(st.sampled_from(ALPHABET), st.sampled_from([*KINDS, "none", "<eos>", "<pad>", "<unk>"]))


@cache
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


@given(st.lists(PIECES, max_size=30).map("".join))
@example("copy none  none\n last_last xsort=")
def test_decoding_gives_back_what_was_encoded(text: str) -> None:
    for finished in (False, True):
        ids = policy().encode_completion(text, finished)
        assert policy().decode(ids) == text
        assert (1 in ids) == finished


@given(st.text(max_size=30))
def test_foreign_characters_never_become_special_tokens(text: str) -> None:
    ids = policy().encode_completion(text, finished=False)
    assert not {0, 1} & set(ids)
    known = "".join(character for character in text if character in ALPHABET)
    assert policy().decode(ids) == known


@given(st.lists(st.integers(3, 63), max_size=30))
def test_what_was_sampled_survives_being_sent_as_text(ids: list[int]) -> None:
    text = policy().decode(ids)
    again = policy().encode_completion(text, finished=False)
    assert policy().decode(again) == text
