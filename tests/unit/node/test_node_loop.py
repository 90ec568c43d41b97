"""What a node counts while it works."""

import math

from shoal.node.loop import cap_operators


def test_own_rows_are_never_capped_and_operators_share_what_was_asked() -> None:
    advantages = [1.0, -1.0, 3.0, 3.0, 1.0]
    operators = ["", "", "loud", "loud", "quiet"]
    factors = cap_operators(advantages, operators, share=1.0)
    assert factors[:2] == [1.0, 1.0]
    weights = [factor * abs(a) for factor, a in zip(factors, advantages, strict=True)]
    assert math.isclose(weights[2] + weights[3], 1.0), "own mass 2, two operators: one each"
    assert weights[4] == 1.0


def test_rows_without_peers_stay_as_they_are() -> None:
    assert cap_operators([1.0, -2.0], ["", ""], share=0.0) == [1.0, 1.0]
