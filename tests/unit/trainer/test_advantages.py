"""Advantages against values worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from shoal.trainer.advantages import (
    CENTRES,
    Groups,
    advantages,
    group_rewards,
    median_rows,
    sequence,
    usable_peer_rows,
)
from shoal.trainer.algorithm import AlgorithmSpec, recipe

NAN = math.nan
GRPO = recipe("grpo")
DR_GRPO = recipe("dr_grpo")


def take(
    rewards: list[float],
    uid: list[int] | None = None,
    own: list[bool] | None = None,
    baseline: list[bool] | None = None,
    spec: AlgorithmSpec = GRPO,
) -> list[float]:
    size = len(rewards)
    return advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(uid or [7] * size),
        torch.tensor(baseline if baseline is not None else [True] * size),
        torch.tensor(own if own is not None else [True] * size),
        spec,
    ).tolist()


def test_grpo_divides_by_the_bessel_std() -> None:
    # mean 1/4, squared deviations 9/16 + 3/16 = 3/4, over 3 = 1/4, std 1/2
    assert take([1, 0, 0, 0]) == pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3], abs=1e-12)


def test_a_group_of_two_gives_the_same_size_for_any_difference() -> None:
    std = math.sqrt(0.5)
    assert take([1, 0]) == pytest.approx([0.5 / (std + 1e-4), -0.5 / (std + 1e-4)], abs=1e-12)
    assert take([1, 0])[0] == pytest.approx(0.7071, abs=2e-4)


def test_dr_grpo_is_the_distance_to_the_mean_and_scales_with_the_reward() -> None:
    assert take([1, 0, 0, 0], spec=DR_GRPO) == [0.75, -0.25, -0.25, -0.25]
    assert take([3, 0, 0, 0], spec=DR_GRPO) == [2.25, -0.75, -0.75, -0.75]


def test_groups_do_not_mix() -> None:
    assert take([1, 5, 0, 3], uid=[1, 2, 1, 2], spec=DR_GRPO) == [0.5, 1.0, -0.5, -1.0]


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_uniform_group_has_exactly_no_signal(reward: float, size: int) -> None:
    assert take([reward] * size) == [0.0] * size


def test_an_unscorable_row_gets_zero_and_is_no_part_of_the_baseline() -> None:
    with_hole = take([1, NAN, 0, 0, 0])
    assert with_hole[1] == 0.0
    assert [*with_hole[:1], *with_hole[2:]] == take([1, 0, 0, 0])


def test_a_group_of_unscorable_rows_is_all_zero() -> None:
    assert take([NAN, NAN, NAN]) == [0.0, 0.0, 0.0]


def test_under_two_baseline_rows_the_whole_group_is_dropped() -> None:
    assert take([1.0], spec=DR_GRPO) == [0.0]
    assert take([1, NAN], spec=DR_GRPO) == [0.0, 0.0]
    assert take([1, 0, 0], baseline=[True, False, False], spec=DR_GRPO) == [0.0, 0.0, 0.0]
    assert take([1, 0, 0], own=[True, False, False], spec=DR_GRPO) == [0.0, 0.0, 0.0]


def test_a_row_outside_the_baseline_is_measured_against_the_others() -> None:
    assert take([1, 0, 1], baseline=[True, True, False], spec=DR_GRPO) == [0.5, -0.5, 0.5]


def test_a_whole_external_set_uses_its_own_mean_and_no_std() -> None:
    assert take([1, 0, 0, 0], own=[False] * 4) == [0.75, -0.25, -0.25, -0.25]


def test_joined_rows_are_measured_against_the_local_baseline_without_std() -> None:
    got = take([1, 0, 0, 0, 1, 0], own=[True] * 4 + [False] * 2)
    assert got[:4] == take([1, 0, 0, 0])
    assert got[4:] == [0.75, -0.25]


def test_an_own_row_is_never_measured_against_peers() -> None:
    got = take([1, 1, 0, 1], own=[True, False, False, False], baseline=[False, True, True, True])
    assert got == pytest.approx([0.0, 1 / 3, -2 / 3, 1 / 3])


def test_a_peers_success_on_a_prompt_that_fails_locally_has_signal() -> None:
    assert take([0, 0, 0, 1], own=[True] * 3 + [False]) == [0.0, 0.0, 0.0, 1.0]


def test_a_mixed_baseline_takes_every_row_whose_baseline_mask_is_set() -> None:
    spec = recipe("dr_grpo", baseline="mixed")
    own = [True, True, False, False]
    assert take([0, 0, 1, 1], own=own, spec=spec) == [-0.5, -0.5, 0.5, 0.5]
    assert take([0, 0, 1, 1], own=own, baseline=[True, True, True, False], spec=spec) == pytest.approx(
        [-1 / 3, -1 / 3, 2 / 3, 2 / 3]
    )


def test_no_centre_is_plain_reinforce() -> None:
    assert take([1, 0], spec=recipe("dr_grpo", centre="none")) == [1.0, 0.0]


def test_every_token_gets_its_completions_advantage_and_padding_none() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert sequence(torch.tensor([2.0, -1.0]), mask).tolist() == [[2, 2, 0], [-1, 0, 0]]


def test_a_later_method_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_one_out(groups: Groups) -> Tensor:
        others = groups.base_count_B - 1
        return (groups.base_mean_B * groups.base_count_B - groups.rewards_B) / others

    monkeypatch.setitem(CENTRES, "leave_one_out", leave_one_out)
    rewards = [1.0, 0.0, 0.5, 0.25]
    expected = [4 / 3 * value for value in take(rewards, spec=DR_GRPO)]  # RLOO = G/(G-1) * (r - m)
    assert take(rewards, spec=recipe("dr_grpo", centre="leave_one_out")) == pytest.approx(expected)


def test_scaled_peers_are_divided_by_the_std_of_the_baseline_like_own_rows() -> None:
    spec = recipe("grpo", scale_peers=True)
    assert take([1, 0, 0, 0], own=[False] * 4, spec=spec) == take([1, 0, 0, 0])
    got = take([1, 0, 0, 0, 1], own=[True] * 4 + [False], spec=spec)
    assert got[4] == pytest.approx(0.75 / 0.5001, abs=1e-12)
    # The published recipe: one group of all. Mean 2/5, squared deviations 2 * 9/25 + 3 * 4/25 = 6/5, std sqrt(.3).
    mixed = take([1, 0, 0, 0, 1], own=[True] * 4 + [False], spec=recipe("grpo", scale_peers=True, baseline="mixed"))
    assert mixed == pytest.approx([v / (math.sqrt(0.3) + 1e-4) for v in (0.6, -0.4, -0.4, -0.4, 0.6)], abs=1e-12)


MEDIAN = recipe("grpo", centre="median", scale="mad")


def test_the_median_and_its_deviation_by_hand() -> None:
    # median .4, distances .4 .3 0 .1 .6, their median .3 (the floor is .35 / 2), four of five rows off the median
    rewards = [0.0, 0.1, 0.4, 0.5, 1.0]
    expected = [5 / 4 * d / (0.3 + 1e-3) for d in (-0.4, -0.3, 0.0, 0.1, 0.6)]
    assert take(rewards, spec=MEDIAN) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("right", range(10))
def test_binary_rewards_do_not_explode_under_the_median(right: int) -> None:
    got = take([1.0] * right + [0.0] * (9 - right), spec=MEDIAN)
    minority = min(right, 9 - right)
    # deviation 0, so the floor of 1/2; 9 / minority rows off the median
    size = 9 / minority / (0.5 + 1e-3) if minority else 0.0
    assert sum(map(abs, got)) == pytest.approx(minority * size)
    assert got == pytest.approx(
        [size] * right + [0.0] * (9 - right) if right < 5 else [0.0] * right + [-size] * minority
    )


def test_one_odd_reward_hardly_moves_the_median() -> None:
    got = take([0, 0.1, 0.2, 0.3, 1e6], spec=recipe("dr_grpo", centre="median"))[:4]
    assert got == pytest.approx([-0.25, -0.125, 0.0, 0.125])


def test_peers_that_join_are_measured_against_the_local_median() -> None:
    got = take([0, 0, 1, 1, 1], own=[True] * 3 + [False] * 2, spec=MEDIAN)
    assert got[3:] == [1.0, 1.0]
    assert got[:3] == take([0, 0, 1], spec=MEDIAN)


def test_one_allowed_row_at_the_median_of_each_group_is_left_out() -> None:
    rewards = torch.tensor([0.0, 1.0, 0.0, 5.0, 3.0, 4.0, 1.0])
    uid, own = torch.tensor([1, 1, 1, 2, 2, 2, 1]), torch.tensor([True] * 6 + [False])
    groups = group_rewards(rewards, uid, torch.ones(7), own, "local")
    everything = torch.ones(7, dtype=torch.bool)
    assert median_rows(groups, everything).nonzero().flatten().tolist() == [0, 5]
    everything[0] = False
    assert median_rows(groups, everything).nonzero().flatten().tolist() == [2, 5]


def noise_weight(q: float, p: float) -> float:
    """What a group of 100 rows with pass rate q weighs, from its one right row."""
    right = round(100 * q)
    rewards = [1.0] * right + [0.0] * (100 - right)
    return take(rewards, spec=recipe("grpo", shape="noise_aware", flip_rate=p))[0] / take(rewards)[0]


@pytest.mark.parametrize("q", [0.01, 0.3, 0.5, 0.99])
def test_without_flips_every_group_weighs_one(q: float) -> None:
    assert noise_weight(q, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.4])
def test_a_group_that_is_half_right_weighs_one_minus_both_flips(p: float) -> None:
    assert noise_weight(0.5, p) == pytest.approx(1 - 2 * p)


def test_flips_by_hand() -> None:
    # q .26, p .1: t = .16 / .8 = .2, t(1-t) = .16, q(1-q) = .1924
    assert noise_weight(0.26, 0.1) == pytest.approx(0.8 * 0.4 / math.sqrt(0.1924))


@pytest.mark.parametrize("q", [0.05, 0.1, 0.9, 0.95])
def test_a_spread_that_flips_explain_weighs_nothing(q: float) -> None:
    assert noise_weight(q, 0.1) == pytest.approx(0.0, abs=1e-6)


def test_flips_weigh_peers_rows_by_the_local_pass_rate() -> None:
    spec = recipe("grpo", shape="noise_aware", flip_rate=0.1)
    got = take([1, 0, 1, 1, 1], own=[True, True, False, False, False], spec=spec)
    assert got[2:] == pytest.approx([0.8 * 0.5] * 3)
    assert take([0, 0, 1], own=[True, True, False], spec=spec)[2] == 0.0


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("all", [True, True, True, True, True]),
        ("positive", [True, True, False, False, True]),
        ("likely", [True, True, True, False, True]),
    ],
)
def test_which_peer_rows_train(rule: str, expected: list[bool]) -> None:
    spec = recipe("grpo", peer_rows=rule, likely_floor=-1.0)
    kept = usable_peer_rows(
        torch.tensor([-1.0, 1.0, -1.0, -1.0, 0.5]),
        torch.tensor([-9.0, -9.0, -1.0, -1.01, -9.0]),
        torch.tensor([False, True, True, True, True]),
        spec,
    )
    assert kept.tolist() == expected
