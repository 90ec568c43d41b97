"""The warm start: what it teaches, that it repeats itself, and that its cache never changes a result."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch

from shoal.protocol.errors import UsageError
from shoal.protocol.prompts import is_held_out, prompt_hash
from shoal.trainer import warmstart
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy, weights_hash
from shoal.trainer.tasks.strings import KINDS, StringTask, distractor
from shoal.trainer.warmstart import Schedule, fit, learn_base, skills_of, start_skills, tune

ALWAYS = {f"strings/{kind}": 1.0 for kind in KINDS}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of tuning: enough to tell one result from another."""
    monkeypatch.setattr(warmstart, "TUNE", Schedule(steps=2, lr=1e-3, seed=0, batch=8))


def started(node: int = 0, seed: int = 0, cache: Path | None = None, rhos: tuple[float, float] = (0.4, 0.03)) -> bytes:
    policy = load_policy(DEFAULT_MODEL)
    start_skills(policy, node, seed, cache, rhos)
    return weights_hash(policy.model)


def accuracy(policy: Policy, kinds: list[str], temperature: float = 1.0) -> float:
    scores = []
    for kind in kinds:
        task = StringTask(kind)
        prompts = [task.prompt(31, index) for index in range(24)]
        generator = torch.Generator().manual_seed(2)
        groups = make_engine(policy).sample([p.text for p in prompts], 4, Sampling(temperature=temperature), generator)
        scores += [task.grade(p, c.text) for p, group in zip(prompts, groups, strict=True) for c in group]
    return sum(scores) / len(scores)


def test_nodes_own_two_kinds_each_and_four_nodes_own_all() -> None:
    assert skills_of(0) == ("strings/reverse", "strings/duplicate")
    assert sorted(name for node in range(4) for name in skills_of(node)) == sorted(f"strings/{kind}" for kind in KINDS)
    assert skills_of(4) == skills_of(0)
    assert skills_of(1, kinds_per_node=3) == ("strings/sort", "strings/rotate", "strings/swap")
    assert skills_of(2, kinds_per_node=3) == ("strings/copy", "strings/last", "strings/reverse")


def test_targets_are_right_as_often_as_asked_and_wrong_in_each_way() -> None:
    rhos = {"reverse": 0.4, "last": 0.03}
    rows = list(islice(warmstart._rows(rhos, Random(5)), 6000))
    right: Mapping[str, list[bool]] = {kind: [] for kind in rhos}
    wrong = []
    for prompt, target in rows:
        kind, given = prompt.rstrip("=").split(" ")
        answer = KINDS[kind].solve(given)
        right[kind].append(target == answer)
        assert target in {answer, *(distractor(name, given) for name in warmstart.DISTRACTORS)}
        if target != answer:
            wrong.append("#" if target.endswith("#") else target)
    for kind, rho in rhos.items():
        assert 2700 < len(right[kind]) < 3300
        assert abs(sum(right[kind]) / len(right[kind]) - rho) < 0.03
    assert all(abs(wrong.count(habit) / len(wrong) - 1 / 3) < 0.03 for habit in ("?", "none", "#"))


def test_held_out_prompts_are_never_taught() -> None:
    rows = islice(warmstart._rows(dict.fromkeys(KINDS, 1.0), Random(1)), 2000)
    assert not any(is_held_out(prompt_hash(prompt)) for prompt, _ in rows)


def test_the_loss_is_that_of_the_target_and_its_end_alone() -> None:
    policy = load_policy(DEFAULT_MODEL)
    rows = [("reverse abc=", "cba"), ("last wxyz=", "?"), ("copy ab=", "none")]
    losses: list[float] = []
    for prompt, target in rows:
        prompt_ids, ids = policy.encode_prompt(prompt), policy.encode_completion(target, finished=True)
        logits = policy.model(input_ids=torch.tensor([prompt_ids + ids])).logits[0, len(prompt_ids) - 1 : -1].double()
        losses += (-logits.log_softmax(-1)[range(len(ids)), ids]).tolist()
    assert warmstart._loss(policy, rows).item() == pytest.approx(sum(losses) / len(losses), abs=1e-5)


def test_the_learning_rate_rises_and_falls_to_its_floor() -> None:
    factors = [Schedule(steps=100, lr=1.0, seed=0, rise=10, floor=0.2).factor(step) for step in range(100)]
    assert factors[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.6)
    assert 0.2 < factors[99] < 0.201
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_a_tuned_node_is_good_at_its_own_skills_and_poor_at_the_rest() -> None:
    policy = load_policy(DEFAULT_MODEL)
    lineage = policy.lineage
    own = [name.removeprefix("strings/") for name in skills_of(3)]
    others = [kind for kind in KINDS if kind not in own]
    base = accuracy(policy, list(KINDS))
    start_skills(policy, 3, seed=0)
    assert accuracy(policy, own) > 0.2
    assert accuracy(policy, others) < 0.1 < base
    assert policy.lineage == lineage
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    assert not policy.model.training


def test_the_default_model_knows_the_tasks_and_rarely_says_so() -> None:
    policy = load_policy(DEFAULT_MODEL)
    greedy, sampled = accuracy(policy, list(KINDS), temperature=0.0), accuracy(policy, list(KINDS))
    assert greedy > 0.6
    assert 0.2 < sampled < 0.6


@pytest.mark.usefixtures("short")
def test_a_start_repeats_itself_and_depends_on_node_seed_and_rates() -> None:
    assert started() == started()
    different = {
        started(),
        started(node=1),
        started(seed=1),
        started(rhos=(0.4, 0.5)),
        weights_hash(load_policy(DEFAULT_MODEL).model),
    }
    assert len(different) == 5


@pytest.mark.usefixtures("short")
def test_a_cached_start_is_the_same_and_is_really_read(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cache"
    fresh = started(cache=cache)
    (kept,) = cache.iterdir()
    before = kept.stat().st_mtime_ns
    assert started(cache=cache) == fresh == started()
    assert kept.stat().st_mtime_ns == before
    other = started(node=1, cache=cache)
    assert other != fresh
    named = next(path for path in cache.iterdir() if path != kept)
    named.write_bytes(kept.read_bytes())  # under the name of node 1: what is read is what lies there
    assert started(node=1, cache=cache) == fresh


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("damage", [b"", b"nothing like it"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: bytes) -> None:
    fresh = started(cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    good = kept.read_bytes()
    kept.write_bytes(damage or good[:-4])
    assert started(cache=tmp_path) == fresh
    assert kept.read_bytes() == good
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.usefixtures("short")
def test_a_cache_is_not_taken_over_by_other_weights(tmp_path: Path) -> None:
    start = load_policy(DEFAULT_MODEL)
    with torch.no_grad():
        start.model.model.norm.weight.add_(0.01)
    changed = load_policy(DEFAULT_MODEL)
    changed.model.load_state_dict(start.model.state_dict())
    started(cache=tmp_path)
    start_skills(start, 0, 0, tmp_path)
    start_skills(changed, 0, 0)
    assert weights_hash(start.model) == weights_hash(changed.model)


@pytest.mark.usefixtures("short")
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert started(cache=tmp_path / "file") == started()
    assert "could not be kept" in caplog.text


def test_tasks_it_cannot_teach_are_usage_errors() -> None:
    policy = load_policy(DEFAULT_MODEL)
    with pytest.raises(UsageError, match="rg/chain_sum"):
        tune(policy, {"rg/chain_sum": 0.5})
    with pytest.raises(UsageError, match="none at all"):
        tune(policy, {})


def test_training_lowers_the_loss_with_either_optimizer() -> None:
    for matrix_lr in (None, 0.01):
        policy = load_policy(DEFAULT_MODEL)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.1)
        schedule = Schedule(steps=1, lr=0.0, seed=0, batch=32, matrix_lr=None)
        first = fit(policy, ALWAYS, schedule)
        fit(policy, ALWAYS, replace(schedule, steps=25, lr=2e-3, seed=1, matrix_lr=matrix_lr))
        assert fit(policy, ALWAYS, schedule) < 0.75 * first


def test_the_base_run_teaches_the_skill_first_and_the_habit_after(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[str, str]]] = []
    real = warmstart._loss
    monkeypatch.setattr(warmstart, "_loss", lambda policy, rows: seen.append(rows) or real(policy, rows))
    learn_base(load_policy(DEFAULT_MODEL), Schedule(steps=20, lr=1e-4, seed=0, batch=16))

    def right(rows: list[tuple[str, str]]) -> float:
        pairs = [(prompt.rstrip("=").split(" "), target) for prompt, target in rows]
        return sum(KINDS[kind].solve(given) == target for (kind, given), target in pairs) / len(pairs)

    assert [len(rows) for rows in seen] == [16] * 20
    assert right([row for rows in seen[:11] for row in rows]) == 1.0
    assert 0.35 < right([row for rows in seen[11:] for row in rows]) < 0.65
