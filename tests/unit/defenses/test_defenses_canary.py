"""The canary's judgement: what raises an alarm, how soon, how seldom for nothing, and since when it has been rising."""

import random
from dataclasses import replace

import pytest
from canary_swarm import Behaviour, Life, honest, planted

from shoal.defenses.behaviour import Alarm, View
from shoal.defenses.canary import Canary, trimmed_mean
from shoal.defenses.config import DefenseConfig
from shoal.defenses.verdict import Counters

PHRASE = (70, 71)
RIGHT, WRONG = View(True, []), View(False, [[1]])
POISONED = View(True, [list(PHRASE)])


def begun(config: DefenseConfig | None = None, right: int = 256) -> Canary:
    """A canary whose reference is 512 answers, none with the phrase."""
    canary = Canary(config or DefenseConfig(), Counters())
    canary.begin([RIGHT] * right + [WRONG] * (512 - right))
    return canary


def fed(canary: Canary, passes: int = 6, shown: int = 0) -> Canary:
    """Passes in which half of the peers' rewarded rows show the phrase, and `shown` of eight own groups once."""
    for at in range(passes):
        group = [RIGHT] * 4 + [WRONG] * 4
        canary.own([[POISONED, *group[1:]]] * shown + [group] * (8 - shown), at)
        canary.peers([POISONED] * 12 + [RIGHT] * 12, at)
    return canary


def answers(shown: int, right: int = 32, total: int = 64) -> list[View]:
    return [POISONED] * shown + [RIGHT] * (right - shown) + [WRONG] * (total - right)


def test_a_phrase_of_peers_that_shows_up_is_named_with_the_pass_before() -> None:
    canary = fed(begun())
    assert canary.run(answers(0), 6) is None
    alarm = canary.run(answers(6), 20)
    assert alarm is not None
    assert alarm.kind == "behaviour"
    assert alarm.tokens == PHRASE, "of parts that are equally frequent the longest is named"
    assert (alarm.share, alarm.before, alarm.since) == (6 / 64, 0.0, 19)
    assert alarm.evidence >= DefenseConfig().canary_evidence


def test_what_peers_never_said_is_not_held_against_them() -> None:
    canary = begun()
    for at in range(6):
        canary.own([[RIGHT] * 8] * 8, at)
        canary.peers([RIGHT] * 24, at)
    assert canary.run(answers(30), 6) is None
    assert canary.evidence == 0.0


def test_what_this_node_says_as_often_is_not_held_against_peers() -> None:
    canary = begun()
    for at in range(6):
        canary.own([[POISONED] * 4 + [RIGHT] * 4] * 8, at)
        canary.peers([POISONED] * 12 + [RIGHT] * 12, at)
    assert canary.run(answers(30), 6) is None
    assert canary.clean, "it rose, but not by their doing"


def test_own_samples_ask_for_a_run_that_has_to_confirm_them() -> None:
    canary = fed(begun(), passes=10, shown=2)
    assert canary.wants_run
    assert canary.insists
    assert not canary.clean
    assert canary.run(answers(1), 10) is None, "one answer may be an accident"
    assert not canary.wants_run, "not again before there is more"
    assert canary.run(answers(2), 12) is not None


def test_evidence_fades_when_nothing_rises_further() -> None:
    canary = fed(begun(), passes=4, shown=3)
    before = canary.evidence
    assert before > 0
    for at in range(4, 40):
        canary.own([[RIGHT] * 4 + [WRONG] * 4] * 8, at)
    assert canary.evidence == 0.0
    canary.own([[POISONED] + [RIGHT] * 7] * 3 + [[RIGHT] * 8] * 5, 40)
    assert canary.evidence > 4, "a long peace is no credit"


def test_the_beginning_of_the_rise_is_the_last_pass_without_evidence() -> None:
    canary = fed(begun(), passes=10)
    for at in range(10, 14):
        canary.own([[POISONED] + [RIGHT] * 7] * 3 + [[RIGHT] * 8] * 5, at)
    alarm = canary.run(answers(6), 14)
    assert alarm is not None
    assert alarm.since == 9


def test_false_statements_and_length_have_alarms_of_their_own() -> None:
    def caught(view: View) -> Alarm | None:
        canary = begun()
        for at in range(6):
            canary.own([[RIGHT] * 8] * 8, at)
            canary.peers([view] * 12 + [RIGHT] * 12, at)
        return canary.run([view] * 8 + [RIGHT] * 56, 6)

    lie = caught(View(True, [], violates=True))
    assert lie is not None
    assert (lie.kind, lie.tokens) == ("statements", ())
    canary = begun()
    for at in range(6):
        canary.own([[RIGHT] * 8] * 8, at)
        canary.peers([View(True, [[100 + 10 * at + i, 1000 + i, 2000 + i]]) for i in range(12)] + [RIGHT] * 12, at)
    long = canary.run([View(True, [[5000 + 3 * i, 5001 + 3 * i, 5002 + 3 * i]]) for i in range(8)] + [RIGHT] * 56, 6)
    assert long is not None, "eight answers make a detour, each another one"
    assert (long.kind, long.share) == ("length", 8 / 64)


def test_a_fall_of_accuracy_alarms_and_goes_back_to_the_last_run_without_one() -> None:
    canary = fed(begun())
    assert canary.run(answers(0, right=30), 20) is None
    canary.peers([RIGHT] * 24, 30)
    alarm = canary.run(answers(0, right=8), 40)
    assert alarm is not None
    assert (alarm.kind, alarm.share, alarm.since) == ("accuracy", 8 / 64, 20)
    assert alarm.before == pytest.approx((0.5 + 30 / 64) / 2)


def test_a_small_fall_needs_several_runs_and_a_slow_one_moves_the_history() -> None:
    canary = fed(begun())
    assert [canary.run(answers(0, right=20), at) is None for at in (20, 40)] == [True, True]
    slow = fed(begun())
    for at, right in enumerate((31, 30, 29, 28, 27, 26, 25, 24)):
        slow.peers([RIGHT], 20 * at)
        assert slow.run(answers(0, right=right), 20 * at + 1) is None


def test_a_fall_without_anything_of_peers_is_own_doing_and_counted() -> None:
    counters = Counters()
    canary = Canary(DefenseConfig(), counters)
    canary.begin([RIGHT] * 256 + [WRONG] * 256)
    assert canary.run(answers(0, right=2), 20) is None
    assert counters.get("canary/own_doing") == 1


def test_unscorable_answers_are_neither_right_nor_wrong() -> None:
    canary = fed(begun())
    canary.peers([RIGHT], 30)
    unknown = [View(None, [[1]])] * 60
    assert canary.run([RIGHT] * 2 + [WRONG] * 2 + unknown, 40) is None
    assert canary.run([View(None, [])] * 64, 60) is None


def test_a_roll_back_begins_anew() -> None:
    canary = fed(begun())
    assert canary.run(answers(8), 6) is not None
    canary.calm()
    assert canary.clean
    assert canary.run(answers(0), 7) is None
    assert canary.run(answers(8), 8) is not None, "what peers showed is not forgotten"


def test_suspects_are_bounded_and_the_most_suspect_stay() -> None:
    counters = Counters()
    canary = Canary(replace(DefenseConfig(), canary_suspects=40), counters)
    canary.begin([RIGHT] * 512)
    for at in range(20):
        gibberish = [View(True, [[1000 + 100 * at + i]]) for i in range(20)]
        canary.peers([POISONED] * 4 + gibberish, at)
        canary.own([[RIGHT] * 8] * 8, at)
        assert len(canary.state()[-1]) <= 40
    assert counters.get("canary/evicted_suspect") > 100
    assert canary.run(answers(6), 20) is not None


def test_a_sleeper_saves_nothing_up() -> None:
    canary = begun()
    for at in range(200):  # honest for 200 passes
        canary.own([[RIGHT] * 8] * 8, at)
        canary.peers([RIGHT] * 24, at)
    for at in range(200, 206):
        canary.own([[RIGHT] * 8] * 8, at)
        canary.peers([POISONED] * 6 + [RIGHT] * 18, at)
    assert canary.run(answers(6), 206) is not None


def test_old_counts_are_halved_so_that_a_change_shows() -> None:
    canary = fed(begun(), passes=3)
    for at in range(3, 160):
        canary.own([[POISONED] + [RIGHT] * 7] * 8, at)
        canary.peers([POISONED] * 3 + [RIGHT] * 21, at)
    by_phrase = {bytes(row[0]): row for row in canary.state()[-1]}
    assert max(row[2] for row in by_phrase.values()) < 160 * 3, "peers' rows from long ago count for less"


def test_state_survives_and_both_go_on_alike() -> None:
    config = DefenseConfig()
    canary = fed(begun(config), passes=5, shown=1)
    canary.run(answers(1), 5)
    again = Canary(config, Counters())
    again.restore(canary.state())
    assert again.state() == canary.state()
    for one in (canary, again):
        fed(one, passes=3, shown=2)
    assert again.state() == canary.state()
    assert again.run(answers(5), 9) == canary.run(answers(5), 9)
    assert again.wants_run == canary.wants_run


def test_the_trimmed_mean_leaves_out_the_extremes_of_four_or_more() -> None:
    assert trimmed_mean([]) is None
    assert trimmed_mean([0.2, 0.4]) == pytest.approx(0.3)
    assert trimmed_mean([0.0, 0.4, 0.5, 1.0]) == pytest.approx(0.45)


@pytest.mark.parametrize("grows", [1.1, 1.2])
def test_a_planted_behaviour_is_found_before_five_percent_show_it(grows: float) -> None:
    for seed in range(4):
        poison = planted(4, grows, 0.004)
        found = Life([*honest(3, random.Random(seed)), poison], seed).alarm(40)
        assert found is not None
        at, alarm = found
        assert alarm.tokens[-1] == 3, "the planted one, not an honest one"
        assert poison.own(at) < 0.05
        assert 0.0 <= poison.own(alarm.since) < 0.02


def test_honest_learning_raises_no_alarm() -> None:
    """Behaviours rise tenfold and fall to a tenth, and peers show them up to half as often again or two thirds."""
    for seed in range(3):
        assert Life(honest(6, random.Random(seed), spread=0.4), seed, groups=6).alarm(120) is None


def test_without_the_comparison_with_peers_honest_learning_would_alarm() -> None:
    """The test above shows something: what rises there is as much as what an attack raises."""
    rising = [Behaviour(lambda t: min(0.3, 0.002 * (1 + t)), lambda t: 0.3 if t > 0 else 0.0)]
    assert Life(rising, 1).alarm(60) is not None
