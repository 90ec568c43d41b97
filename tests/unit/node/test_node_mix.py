"""What one update is made of."""

import math

import pytest
from node_pieces import own_set, peer_set, prompt

from shoal.node.config import Mixing
from shoal.node.mix import Mixer
from shoal.node.sets import is_uniform
from shoal.protocol.staleness import Clock, LagClock
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy

RIGHT, WRONG = 1.0, 0.0
TEXTS = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


def mixer(policy: Policy, **mixing: object) -> Mixer:
    lags = LagClock()
    lags.began(0, 0)
    settings = Mixing(**({"local": 2, "external": 2, "group_size": 4} | mixing))
    return Mixer(settings, policy, Clock(lambda: 130.0, 0, 60), lags, 1.0)


def test_uniform_sets_carry_no_signal() -> None:
    assert is_uniform([0.0, 0.0])
    assert is_uniform([1.0, math.nan, 1.0])
    assert is_uniform([math.nan, math.nan])
    assert not is_uniform([1.0, math.nan, 0.0])


def test_whole_sets_leave_uniform_own_sets_out_before_choosing(policy: Policy) -> None:
    uniform = own_set(policy, prompt(0), TEXTS, [WRONG] * 4)
    mixed = [own_set(policy, prompt(index), TEXTS, [RIGHT, WRONG, WRONG, WRONG]) for index in (1, 2, 3)]
    peer = peer_set(5, prompt(9), TEXTS, [RIGHT, WRONG, WRONG, WRONG])
    result = mixer(policy).mix([uniform, *mixed], [peer])
    assert (result.own_sets, result.peer_sets) == (2, 1)
    assert [row.uid for row in result.rows] == [0] * 4 + [1] * 4 + [2] * 4
    assert [row.own for row in result.rows] == [True] * 8 + [False] * 4
    assert result.origins == [mixed[0]] * 4 + [mixed[1]] * 4 + [peer] * 4


def test_rows_of_peers_are_text_read_by_the_own_tokenizer_with_their_age(policy: Policy) -> None:
    peer = peer_set(5, prompt(9), ["cba", "x"], [RIGHT, WRONG])
    row = mixer(policy).mix([], [peer]).rows[0]
    assert row.completion_ids == policy.encode_completion("cba", finished=True)
    assert row.prompt_ids == policy.encode_prompt(prompt(9).text)
    assert row.behaviour_logps is None
    assert (row.age, row.lag) == (2, 0)
    assert row.source == peer.pointer.key


def test_joined_rows_enter_the_group_of_their_prompt_up_to_their_share(policy: Policy) -> None:
    own = own_set(policy, prompt(1), TEXTS, [WRONG] * 4)
    peers = [peer_set(node, prompt(1), TEXTS, [RIGHT] * 4) for node in (5, 6)]
    other = peer_set(7, prompt(2), TEXTS, [RIGHT] * 4)
    result = mixer(policy, mix="joined").mix([own], [*peers, other])
    foreign = [row for row in result.rows if not row.own]
    assert {row.uid for row in result.rows} == {0}
    assert len(foreign) == 4, "floor(J G / I) = 4 rows may join"
    assert sorted(row.operator for row in foreign) == ["operator-5"] * 2 + ["operator-6"] * 2
    assert (result.own_sets, result.peer_sets) == (1, 2)
    assert result.origins[:4] == [own] * 4
    assert [origin.pointer.key for origin in result.origins[4:]] == [row.source for row in foreign]


def test_a_joined_group_that_stays_uniform_is_left_out(policy: Policy) -> None:
    own = own_set(policy, prompt(1), TEXTS, [RIGHT] * 4)
    peer = peer_set(5, prompt(1), TEXTS, [RIGHT] * 4)
    assert mixer(policy, mix="joined").mix([own], [peer]).rows == []
