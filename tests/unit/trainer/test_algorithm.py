"""A specification is checked whole, before anything is loaded."""

from typing import Any

import pytest

from shoal.protocol.errors import UsageError
from shoal.trainer.algorithm import RECIPES, AlgorithmSpec, OptimizerSpec, recipe


def test_recipes_are_the_published_settings() -> None:
    grpo, dr_grpo, dapo = RECIPES["grpo"], RECIPES["dr_grpo"], RECIPES["dapo"]
    assert (grpo.scale, grpo.aggregation, grpo.clip_low, grpo.clip_high) == (
        "group_std",
        "seq_mean_token_mean",
        0.2,
        0.28,
    )
    assert (dr_grpo.scale, dr_grpo.aggregation, dr_grpo.clip_high) == ("none", "seq_mean_token_sum_norm", 0.2)
    assert (dapo.aggregation, dapo.drop_uniform, dapo.clip_low, dapo.clip_high) == ("token_mean", True, 0.2, 0.28)
    assert dapo.rewards == ("task", "soft_overlong")
    assert {spec.beta for spec in RECIPES.values()} == {0.0}
    assert all(name == spec.name for name, spec in RECIPES.items())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"centre": "average"}, "choose one of mean, median, none"),
        ({"aggregation": "x"}, "token_mean"),
        ({"ratio": "x"}, "sequence"),
        ({"gate": "x"}, "ppo_clip"),
        ({"kl": "x"}, "k3"),
        ({"baseline": "x"}, "local, mixed"),
        ({"peer_rows": "x"}, "all, positive, likely"),
        ({"rewards": ("task", "x")}, "soft_overlong"),
        ({"rewards": ()}, "at least one"),
        ({"clip_low": 1.5}, "between 0 and 1"),
        ({"clip_high": 0.0}, "positive"),
        ({"dual_clip": 0.5}, "above 1"),
        ({"damping": 0.0}, "a probability"),
        ({"damping": 1.5}, "a probability"),
        ({"flip_rate": 0.5}, "less than 0.5"),
        ({"kl": "k3"}, "beta > 0"),
        ({"beta": 0.04}, "go together"),
        ({"minibatches": 0}, "1 or more"),
        ({"max_tokens": 4, "overlong_cache": 5}, "1 to max_tokens"),
        ({"tau": 1.0}, "unknown algorithm setting tau"),
    ],
)
def test_a_wrong_setting_says_what_to_do(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        recipe("grpo", **changes)


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="grpo, dr_grpo, dapo"):
        recipe("ppo")


@pytest.mark.parametrize("changes", [{"lr": 0}, {"dtype": "int8"}, {"grad_clip": 0}, {"micro_tokens": 0}])
def test_a_wrong_optimizer_setting_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        OptimizerSpec(**changes)


def test_a_specification_cannot_be_changed_behind_its_checks() -> None:
    with pytest.raises(AttributeError):
        AlgorithmSpec().clip_low = 2.0  # type: ignore[misc]
