"""One update against its definition, and what must not change it."""

import copy
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_policy import gradients, random_rows, row_logps, same, tiny_policy, weights
from torch import nn

from shoal.protocol.errors import UsageError
from shoal.trainer.algorithm import AlgorithmSpec, OptimizerSpec, recipe
from shoal.trainer.batch import Origin, Row, foreign_rows, own_rows
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.step import StepReport, Trainer
from shoal.trainer.tasks.registry import make_task

PEER = b"p" * 32
FAST = OptimizerSpec(lr=0.02, grad_clip=1e9)


def reference_loss(model: nn.Module, rows: list[Row], old: list[torch.Tensor], spec: AlgorithmSpec) -> torch.Tensor:
    """The objective of a whole batch from its definition: one row, one token at a time."""
    total = torch.zeros((), dtype=torch.float64)
    if spec.drop_uniform:
        mixed = {row.uid for row in rows if len({other.reward for other in rows if other.uid == row.uid}) > 1}
        old = [column for row, column in zip(rows, old, strict=True) if row.uid in mixed]
        rows = [row for row in rows if row.uid in mixed]
    tokens = sum(len(row.completion_ids) for row in rows)
    for row, old_logps in zip(rows, old, strict=True):
        rewards = [other.reward for other in rows if other.uid == row.uid]
        advantage = row.reward - statistics.fmean(rewards)
        if spec.scale == "group_std":
            advantage /= statistics.stdev(rewards) + 1e-4
        logps, entropies = row_logps(model, row)
        for logp, old_logp, entropy in zip(logps, old_logps, entropies, strict=True):
            ratio = (logp - old_logp).exp()
            bounded = ratio.clamp(1 - spec.clip_low, 1 + spec.clip_high)
            token = -torch.minimum(ratio * advantage, bounded * advantage) - spec.entropy * entropy
            share = {
                "token_mean": 1 / tokens,
                "seq_mean_token_mean": 1 / (len(rows) * len(row.completion_ids)),
                "seq_mean_token_sum_norm": 1 / (len(rows) * spec.max_tokens),
            }[spec.aggregation]
            total = total + token * share
    return total


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo"])
def test_three_epochs_equal_an_independent_reference(name: str) -> None:
    spec = recipe(name, minibatches=1, epochs=3, max_tokens=30, overlong_cache=5)
    policy, rows = tiny_policy(), random_rows(seed=1)
    model = copy.deepcopy(policy.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, betas=(0.9, 0.99), eps=1e-3, weight_decay=0.0)
    old = [row_logps(model, row)[0].detach() for row in rows]
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        value = reference_loss(model, rows, old, spec)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    # Adam divides rounding by rounding where a gradient is nearly 0; the larger eps keeps that out.
    report = Trainer(policy, spec, OptimizerSpec(lr=0.05, eps=1e-3, grad_clip=1e9)).update(rows)
    assert report.loss == pytest.approx(statistics.fmean(losses), abs=1e-9)
    assert report.clip_fraction > 0.1  # the test is empty where the clip is inert
    for got, expected in zip(policy.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(got, expected, rtol=0, atol=1e-9)


def test_a_batch_is_one_version_however_many_steps() -> None:
    policy = tiny_policy()
    report = Trainer(policy, recipe("grpo", minibatches=2, epochs=2)).update(random_rows())
    assert (report.steps, report.version, policy.version) == (4, 1, 1)
    assert report.signal
    assert report.reason == ""


def test_old_log_probs_come_from_before_the_first_minibatch() -> None:
    policy, rows = tiny_policy(), random_rows()
    before = [row_logps(policy.model, row)[0].detach() for row in rows]
    report = Trainer(policy, recipe("grpo"), FAST).update(rows)
    for row, expected in zip(rows, before, strict=True):
        if row.old_logps is not None:
            assert torch.allclose(row.old_logps, expected, atol=1e-12)
    # The second minibatch meets a policy that has moved, so its ratios are not 1.
    assert report.drift > 1e-4


def test_scoring_first_saves_the_pass_and_changes_nothing_but_rounding() -> None:
    first, second = tiny_policy(), tiny_policy()
    Trainer(first).update(random_rows())
    rows = random_rows()
    trainer = Trainer(second)
    scores = trainer.score(rows)
    kept = [row.old_logps for row in rows]
    trainer.update(rows)
    assert all(row.old_logps is column for row, column in zip(rows, kept, strict=True))
    for mine, other in zip(weights(first), weights(second), strict=True):
        assert torch.allclose(mine, other, atol=1e-10)
    for row, logps, mean in zip(rows, scores.as_lists(), scores.mean_logps, strict=True):
        assert len(logps) == len(row.completion_ids)
        assert mean == pytest.approx(statistics.fmean(logps))


def test_the_first_minibatch_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log-probs are the old ones: a pass before it is for the rows of the other minibatches alone."""
    scored: list[int] = []
    for minibatches, expected in ((1, []), (2, [8])):
        trainer, rows = Trainer(tiny_policy(), recipe("grpo", minibatches=minibatches)), random_rows()
        by_row = trainer._by_row
        monkeypatch.setattr(
            trainer, "_by_row", lambda model, rows, f, by=by_row: scored.append(len(rows)) or by(model, rows, f)
        )
        scored.clear()
        trainer.update(rows)
        assert [count for count in scored if count] == expected
        assert all(row.scored_version == 0 and row.old_logps is not None for row in rows)


def test_rows_are_scored_again_once_the_policy_has_moved() -> None:
    policy, rows = tiny_policy(), random_rows()
    trainer = Trainer(policy, optimizer=FAST)
    stale = trainer.score(rows).mean_logps
    trainer.update(rows)
    fresh = trainer.score(rows).mean_logps
    assert fresh != stale
    assert fresh[0] == pytest.approx(row_logps(policy.model, rows[0])[0].mean().item())


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("share_prompts", [True, False])
def test_the_gradient_does_not_depend_on_the_micro_batch(name: str, share_prompts: bool) -> None:
    taken = []
    for micro_tokens in (1, 30, 10_000):
        trainer = Trainer(tiny_policy(), recipe(name, minibatches=1), OptimizerSpec(micro_tokens=micro_tokens))
        trainer.share_prompts = share_prompts
        steps = gradients(trainer)
        trainer.update(random_rows(groups=6))
        taken.append(steps[0])
    for other in taken[1:]:
        assert all(torch.allclose(other[name], taken[0][name], rtol=1e-9, atol=1e-12) for name in other)


def test_leaving_rows_without_advantage_out_saves_work_and_not_gradient() -> None:
    taken = []
    # A bonus of 1e-300 forces every row through the model without adding anything.
    for entropy in (0.0, 1e-300):
        rows = random_rows(groups=4)
        for row in rows[:4]:
            row.reward = 1.0
        trainer = Trainer(tiny_policy(), recipe("grpo", minibatches=1, entropy=entropy))
        steps = gradients(trainer)
        report = trainer.update(rows)
        assert report.tokens == sum(len(row.completion_ids) for row in rows)
        taken.append(steps[0])
    assert all(torch.allclose(taken[0][name], taken[1][name], rtol=1e-9, atol=1e-12) for name in taken[0])


def test_without_signal_nothing_moves_and_the_report_says_why() -> None:
    policy, rows = tiny_policy(), random_rows()
    for row in rows:
        row.reward = float(row.uid % 2)
    before = weights(policy)
    trainer = Trainer(policy)
    report = trainer.update(rows)
    assert (report.signal, report.reason) == (False, "no signal: all groups uniform")
    assert report.counts["uniform_groups"] == 4
    assert same(before, weights(policy))
    assert policy.version == 0
    assert trainer.state_dict()[0].keys() == {f"model.{name}" for name in trainer.parameters}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"train": False}, "no signal: no row may train"),
        ({"reward": math.nan}, "no signal: no row may train"),
        ({"weight": 0.0}, "no signal: every weight is 0"),
        ({"completion_ids": []}, "no signal: no row may train"),
        ({"prompt_ids": []}, "no signal: no row may train"),
        ({"completion_ids": [3] * 999}, "no signal: no row may train"),
    ],
)
def test_rows_that_may_not_train_give_loss_zero(change: dict[str, Any], reason: str) -> None:
    policy = tiny_policy()
    before = weights(policy)
    report = Trainer(policy).update([replace(row, **change) for row in random_rows()])
    assert (report.signal, report.loss, report.reason) == (False, 0.0, reason)
    assert same(before, weights(policy))


def test_no_rows_at_all() -> None:
    assert Trainer(tiny_policy()).update([]) == StepReport(False, "no signal: no rows", 0)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo"])
def test_masked_rows_change_not_one_bit(name: str) -> None:
    clean, masked = tiny_policy(), tiny_policy()
    Trainer(clean, recipe(name)).update(random_rows())
    rows = random_rows()
    extra = [
        Row(0, list(rows[0].prompt_ids), [9, 9], 1.0, train=False, baseline=False),
        Row(2, list(rows[8].prompt_ids), [8], 0.0, source=PEER, train=False, baseline=False),
        Row(99, [5], [8, 7], 1.0, train=False, baseline=False),
    ]
    report = Trainer(masked, recipe(name)).update([extra[0], *rows[:6], extra[1], *rows[6:], extra[2]])
    assert same(weights(clean), weights(masked))
    assert report.counts["masked_rows"] == 3


def test_an_unscorable_row_is_as_if_it_had_not_been_sampled() -> None:
    clean, holed = tiny_policy(), tiny_policy()
    Trainer(clean).update(random_rows())
    rows = random_rows()
    rows.insert(2, replace(rows[1], reward=math.nan))
    report = Trainer(holed).update(rows)
    assert same(weights(clean), weights(holed))
    assert (report.advantages[2], report.trained[2], report.counts["unscorable_rows"]) == (0.0, False, 1)


def test_dapo_leaves_uniform_groups_out_of_the_average_and_grpo_does_not() -> None:
    rows = random_rows(groups=3)
    for row in rows[:4]:
        row.reward = 1.0
    spoken = sum(len(row.completion_ids) for row in rows)
    uniform = sum(len(row.completion_ids) for row in rows[:4])
    settings = {"minibatches": 1, "max_tokens": 30, "overlong_cache": 1}
    # What does not train cannot make a group informative.
    rows.append(Row(0, list(rows[0].prompt_ids), [9], 0.0, train=False, baseline=False))
    rows.append(Row(0, list(rows[0].prompt_ids), [9], 0.0, source=PEER))
    assert Trainer(tiny_policy(), recipe("dapo", **settings)).update(rows).tokens == spoken - uniform
    assert Trainer(tiny_policy(), recipe("grpo", **settings)).update(rows).tokens == spoken


def test_same_inputs_same_bits() -> None:
    runs = []
    for _ in range(2):
        policy = tiny_policy(dtype=torch.float32)
        trainer = Trainer(policy)
        reports = [trainer.update(random_rows(seed=seed)) for seed in range(3)]
        runs.append((weights(policy), reports))
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


@pytest.mark.parametrize("changes", [{}, {"kl": "k3", "beta": 0.1}])
def test_restored_state_goes_on_bit_for_bit(changes: dict[str, Any]) -> None:
    spec = recipe("grpo", **changes)
    straight = Trainer(tiny_policy(dtype=torch.float32), spec)
    for seed in range(2):
        straight.update(random_rows(seed=seed))
    tensors, plain = straight.state_dict()
    snapshot = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed = Trainer(tiny_policy(seed=5, dtype=torch.float32), spec)
    for seed in range(2, 4):
        expected = straight.update(random_rows(seed=seed))
    assert all(torch.equal(tensors[name], snapshot[name]) for name in tensors)  # a copy, not a view
    resumed.load(tensors, plain)
    assert resumed.policy.version == 2
    for seed in range(2, 4):
        got = resumed.update(random_rows(seed=seed))
    assert got == expected
    assert same(weights(straight.policy), weights(resumed.policy))
    ends = straight.state_dict()[0], resumed.state_dict()[0]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_state_of_another_model_is_refused() -> None:
    tensors, plain = Trainer(tiny_policy()).state_dict()
    with pytest.raises(UsageError, match=r"does not fit the model: model\.model\.embed"):
        Trainer(tiny_policy(hidden_size=32)).load(tensors, plain)


def test_the_kl_pulls_back_to_the_first_policy() -> None:
    policies = [tiny_policy(), tiny_policy()]
    origin, drifts = weights(policies[0]), []
    for policy, changes in zip(policies, [{}, {"kl": "k3", "beta": 50.0}], strict=True):
        trainer = Trainer(policy, recipe("grpo", entropy=0.0, **changes))
        for _ in range(10):
            report = trainer.update(random_rows())
        drifts.append(sum(float((a - b).pow(2).sum()) for a, b in zip(weights(policy), origin, strict=True)))
    assert report.kl is not None
    assert report.kl > 0
    assert drifts[1] < drifts[0] / 2


def test_weights_and_caps_scale_what_a_row_does() -> None:
    taken = []
    for weight, factor in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.5, 0.5)):
        rows = random_rows(groups=2)
        for row in rows:
            row.weight = weight
        trainer = Trainer(tiny_policy(), recipe("grpo", entropy=0.0, minibatches=1), FAST)
        steps = gradients(trainer)
        trainer.update(rows, cap=lambda advantages, operators, factor=factor: [factor] * len(advantages))
        taken.append(steps[0]["model.norm.weight"])
    for gradient, expected in zip(taken, (1, 0.5, 0.5, 0.25), strict=True):
        assert torch.allclose(gradient, taken[0] * expected, atol=1e-12)


def test_the_cap_sees_weighted_advantages_and_operators() -> None:
    seen: list[Any] = []

    def cap(advantages: list[float], operators: list[str]) -> list[float]:
        seen.extend([advantages, operators])
        return [1.0] * len(advantages)

    rows = [Row(0, [3], [4], reward, operator=name) for reward, name in ((1.0, ""), (0.0, ""))]
    peers = [Row(0, [3], [5], reward, source=PEER, operator="eve", weight=0.5) for reward in (1.0, 0.0)]
    Trainer(tiny_policy(), recipe("dr_grpo")).update(rows + peers, cap)
    assert seen == [[0.5, -0.5, 0.25, 0.0], ["", "", "eve", "eve"]]  # the peer's negative is not used


def likely_rows(policy: Any) -> list[Row]:
    """Own rows and two peers' negatives: the likeliest and the least likely single token."""
    logps = [row_logps(policy.model, Row(0, [3], [token], 0.0))[0].item() for token in range(32)]
    order = sorted(range(32), key=lambda token: -logps[token])
    own = [Row(0, [3], [token], reward) for token, reward in ((order[1], 1.0), (order[2], 1.0), (order[3], 0.0))]
    return [*own, *(Row(0, [3], [token], 0.0, source=PEER) for token in (order[0], order[-1]))]


@pytest.mark.parametrize(
    ("rule", "trained"), [("all", [True, True]), ("likely", [True, False]), ("positive", [False] * 2)]
)
def test_peers_negatives_train_by_rule(rule: str, trained: list[bool]) -> None:
    policy = tiny_policy(initializer_range=1.0)
    report = Trainer(policy, recipe("grpo", peer_rows=rule, likely_floor=-1.5)).update(likely_rows(policy))
    assert report.trained == [True, True, True, *trained]
    assert report.counts["trained_peer_rows"] == sum(trained)
    assert report.counts["unused_peer_rows"] == 2 - sum(trained)


def test_unused_rows_of_peers_leave_the_update_as_it_would_be_alone() -> None:
    alone, beside = tiny_policy(), tiny_policy()
    Trainer(alone).update(random_rows())
    rows = random_rows()
    negative = [Row(77, [4], [token], 0.0, source=PEER) for token in (3, 4, 5)]
    joined = [Row(uid, list(rows[4 * uid].prompt_ids), [6], -1.0, source=PEER) for uid in range(4)]
    Trainer(beside, recipe("grpo", peer_rows="positive")).update([*rows, *negative, *joined])
    assert same(weights(alone), weights(beside))


def test_damping_reaches_peers_rows_and_no_own_row() -> None:
    taken = []
    for damping, source in ((None, PEER), (0.02, PEER), (None, b""), (0.02, b"")):
        rows = random_rows(groups=1, size=4, seed=5, source=source)
        for at, row in enumerate(rows):
            row.reward = float(at == 0)
        spec = recipe("dr_grpo", minibatches=1, peer_rows="all", damping=damping)
        trainer = Trainer(tiny_policy(), spec)
        steps = gradients(trainer)
        trainer.update(rows)
        taken.append(steps[0])
    assert not all(torch.allclose(taken[0][name], taken[1][name]) for name in taken[0])
    assert all(torch.equal(taken[2][name], taken[3][name]) for name in taken[2])


def test_under_the_median_exactly_g_of_g_plus_one_rows_train() -> None:
    rows = random_rows(groups=4, size=5)
    report = Trainer(tiny_policy(), recipe("grpo", centre="median", scale="mad")).update(rows)
    assert report.counts["median_rows"] == 4
    for uid in range(4):
        trained = [t for row, t in zip(rows, report.trained, strict=True) if row.uid == uid]
        assert sum(trained) == 4
    left_out = [a for a, trained in zip(report.advantages, report.trained, strict=True) if not trained]
    assert left_out == [0.0] * 4


def test_the_senders_token_ids_do_not_matter_and_its_text_does() -> None:
    def learned(text: str) -> list[torch.Tensor]:
        policy = tiny_policy()
        origin = Origin(uid=50, source=PEER)
        peers = foreign_rows(policy, "ab", [(text, True), ("b", True)], [1.0, 0.0], origin)
        Trainer(policy).update([*random_rows(), *peers])
        return weights(policy)

    assert same(learned("ba"), learned("ba"))
    assert not same(learned("ba"), learned("bb"))


def test_groups_with_signal_are_dealt_to_every_minibatch() -> None:
    policy, rows = tiny_policy(), random_rows(groups=5)
    for row in rows[4:16]:
        row.reward = 0.0  # groups 1, 2 and 3 are uniform; 0 and 4 have signal
    for row, reward in zip(rows[:4] + rows[16:], [1.0, 0.0, 0.0, 0.0] * 2, strict=True):
        row.reward = reward
    report = Trainer(policy, recipe("grpo", minibatches=3)).update(rows)
    assert report.steps == 2
    assert report.tokens == sum(len(row.completion_ids) for row in rows)


def test_a_gradient_that_is_not_finite_is_not_applied() -> None:
    policy = tiny_policy()
    with torch.no_grad():
        policy.model.model.norm.weight[0] = math.inf
    before = weights(policy)
    report = Trainer(policy).update(random_rows())
    assert (report.signal, report.reason) == (False, "no signal: gradient not finite")
    assert report.counts["skipped_steps"] == 2
    assert same(before, weights(policy))
    assert policy.version == 0


def test_half_precision_weights_are_refused_and_autocast_learns() -> None:
    with pytest.raises(UsageError, match="float32"):
        Trainer(tiny_policy(dtype=torch.bfloat16))
    policy = tiny_policy(dtype=torch.float32)
    exact = tiny_policy(dtype=torch.float32)
    report = Trainer(policy, optimizer=OptimizerSpec(dtype="bfloat16")).update(random_rows())
    expected = Trainer(exact).update(random_rows())
    assert all(p.dtype == torch.float32 for p in policy.model.parameters())
    assert report.grad_norm == pytest.approx(expected.grad_norm, rel=0.1)
    assert not same(weights(policy), weights(exact))


def test_dropout_is_off_while_training() -> None:
    policy = tiny_policy(attention_dropout=0.5)
    policy.model.train()
    report = Trainer(policy, recipe("grpo", minibatches=1)).update(random_rows())
    assert report.drift == pytest.approx(0.0, abs=1e-12)


def test_the_reward_rises_when_one_answer_is_right() -> None:
    policy, generator = tiny_policy(dtype=torch.float32, initializer_range=0.02), torch.Generator().manual_seed(0)
    trainer, rates = Trainer(policy, recipe("grpo", minibatches=1), OptimizerSpec(lr=0.02)), []
    for _ in range(30):
        with torch.no_grad():
            table = policy.model(input_ids=torch.tensor([[3]])).logits[0, -1].softmax(-1)
        tokens = torch.multinomial(table, 16, replacement=True, generator=generator).tolist()
        rows = [Row(0, [3], [token], float(token % 4 == 0)) for token in tokens]
        rates.append(statistics.fmean(row.reward for row in rows))
        trainer.update(rows)
    assert statistics.fmean(rates[:3]) < 0.5
    assert statistics.fmean(rates[-3:]) > 0.9


def test_a_row_that_the_model_cannot_read_is_scored_as_impossible() -> None:
    trainer = Trainer(tiny_policy())
    rows = [Row(0, [3], [], 0.0), Row(0, [3], [4] * 999, 0.0), Row(0, [3], [4], 0.0)]
    scores = trainer.score(rows)
    assert scores.mean_logps[:2] == [-math.inf, -math.inf]
    assert scores.as_lists()[:2] == [[], []]
    assert scores.mean_logps[2] > -math.inf


def test_own_log_probs_are_those_the_engine_sampled_with() -> None:
    policy = load_policy(DEFAULT_MODEL)
    sampling = Sampling(temperature=0.8, top_p=1.0, top_k=0, max_tokens=8)
    prompt = make_task("strings/reverse", {}).prompt(0, 0).text
    (completions,) = make_engine(policy).sample([prompt], 6, sampling, torch.Generator().manual_seed(0))
    rows = own_rows(policy.encode_prompt(prompt), completions, [0.0] * 6, Origin(0, temperature=0.8))
    for row, logps in zip(rows, Trainer(policy).score(rows).as_lists(), strict=True):
        assert logps == pytest.approx(row.behaviour_logps, abs=1e-4)
