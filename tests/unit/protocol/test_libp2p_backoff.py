from shoal.protocol.libp2p.backoff import MAX_REMEMBERED, Backoff
from shoal.protocol.libp2p.budget import MAX_PEERS, Budgets


def next_due(backoff: Backoff, name: str, now: float) -> float:
    """The first whole quarter of a second at which a try is due."""
    return next(now + step / 4 for step in range(10_000) if backoff.due(name, now + step / 4))


def test_waits_double_up_to_the_last():
    backoff, now = Backoff(1.0, 8.0), 100.0
    assert backoff.due("peer", now)
    for wait in (1, 2, 4, 8, 8):
        backoff.failed("peer", now)
        after = next_due(backoff, "peer", now)
        assert wait <= after - now <= wait * 1.25 + 0.25
        now = after
    assert backoff.failures("peer") == 5
    backoff.succeeded("peer", now)
    assert backoff.due("peer", now)
    backoff.succeeded("peer", now, again=60)
    assert not backoff.due("peer", now + 59)
    assert backoff.due("peer", now + 60)


def test_not_for_ever():
    """Failures 26: a peer that is gone is not hammered; a later record earns one more try, no sooner than its wait."""
    backoff = Backoff(1.0, 8.0, patience=3)
    for _ in range(3):
        backoff.failed("ghost", 0.0)
    assert not backoff.due("ghost", 1e9)
    backoff.relent("ghost")
    assert not backoff.due("ghost", 3.0)
    assert backoff.due("ghost", 6.0)
    backoff.failed("ghost", 6.0)
    assert not backoff.due("ghost", 1e9)
    backoff.relent("other")
    assert backoff.due("other", 0.0)


def test_hurrying_shortens_what_waits():
    backoff = Backoff(100.0, 800.0)
    backoff.failed("peer", 0.0)
    backoff.hurry(10.0)
    assert not backoff.due("peer", 9.0)
    assert backoff.due("peer", 10.0)
    backoff.hurry(50.0)  # lengthens nothing
    assert backoff.due("peer", 10.0)


def test_what_is_remembered_is_bounded():
    backoff = Backoff(1.0, 8.0)
    for number in range(MAX_REMEMBERED + 10):
        backoff.failed(str(number), 0.0)
    assert backoff.failures("0") == 0
    assert backoff.failures(str(MAX_REMEMBERED)) == 1


def test_a_budget_is_spent_and_refills():
    now = 0.0
    budgets = Budgets(rate=2.0, burst=4.0, now=lambda: now)
    assert [budgets.spend("a") for _ in range(5)] == [True] * 4 + [False]
    assert budgets.spend("b", 4)
    now = 1.0
    assert [budgets.spend("a") for _ in range(3)] == [True, True, False]
    now = 100.0
    assert not budgets.spend("a", 5)
    assert budgets.spend("a", 4)


def test_budgets_of_many_peers_are_bounded():
    budgets = Budgets(rate=0.0, burst=1.0, now=lambda: 0.0)
    assert budgets.spend("first")
    for number in range(MAX_PEERS):
        budgets.spend(str(number))
    assert budgets.spend("first")  # forgotten, like everybody who was not seen for long
