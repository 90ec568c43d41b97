"""Offences, muting and parole."""

import sys
from threading import Thread

import msgpack

from shoal.defenses.config import DefenseConfig
from shoal.defenses.reputation import Reputation, key_subject, sender_subject
from shoal.defenses.verdict import Counters

SUBJECT = sender_subject(b"a")


def reputation(**changes) -> Reputation:
    return Reputation(DefenseConfig(mute_after=4, mute_window=2, parole=10, **changes), Counters())


def offend(book: Reputation, times: int, subject: bytes = SUBJECT) -> None:
    for _ in range(times):
        book.offend(subject)


def test_repeated_offences_mute_until_parole():
    book = reputation()
    offend(book, 3)
    assert not book.muted(SUBJECT)
    offend(book, 1)
    assert book.muted(SUBJECT)
    book.advance(9)
    assert book.muted(SUBJECT)
    book.advance(10)
    assert not book.muted(SUBJECT)


def test_rare_offences_never_mute():
    book = reputation()
    for round_number in range(0, 400, 2):  # one every window: the score stays at 2
        book.advance(round_number)
        offend(book, 1)
    assert not book.muted(SUBJECT)
    assert 1.9 < book.score(SUBJECT) <= 2.0


def test_the_score_halves_every_window():
    book = reputation()
    offend(book, 2)
    book.advance(2)
    assert book.score(SUBJECT) == 1.0
    book.advance(4)
    assert book.score(SUBJECT) == 0.5


def test_a_relapse_on_parole_mutes_sooner():
    book = reputation()
    offend(book, 4)
    book.advance(10)
    offend(book, 2)
    assert book.muted(SUBJECT)


def test_offences_while_muted_do_not_lengthen_it():
    book = reputation()
    offend(book, 4)
    book.advance(5)
    offend(book, 3)
    book.advance(10)
    assert not book.muted(SUBJECT)


def test_a_sender_never_costs_a_key_its_name():
    book = reputation()
    offend(book, 4, sender_subject(b"k" * 32))
    assert not book.muted(key_subject(b"k" * 32))
    assert sender_subject(b"x" * 1000) == sender_subject(b"x" * 64)


def test_subjects_are_bounded_and_evictions_counted():
    counters = Counters()
    book = Reputation(DefenseConfig(subjects=3), counters)
    for number in range(5):
        book.offend(sender_subject(b"%d" % number))
    assert len(book.state()["records"]) == 3
    assert counters.get("reputation/evicted_subject") == 2


def test_a_muting_is_not_flushed_by_other_offenders():
    counters = Counters()
    book = Reputation(DefenseConfig(mute_after=4, parole=10, subjects=3), counters)
    offend(book, 4)
    for number in range(5000):
        book.offend(sender_subject(b"other %d" % number))
    assert book.muted(SUBJECT)
    assert counters.get("reputation/evicted_muted") == 0
    again = Reputation(DefenseConfig(mute_after=4, parole=10, subjects=3), Counters())
    again.restore(msgpack.unpackb(msgpack.packb(book.state())))
    assert again.muted(SUBJECT)
    assert again.state() == book.state()
    book.advance(10)
    assert not book.muted(SUBJECT)
    assert book.score(SUBJECT) == 2.0  # on parole, among the others again
    assert len(book.state()["records"]) == 3


def test_the_muted_are_bounded_too_and_the_oldest_muting_gives_way():
    counters = Counters()
    book = Reputation(DefenseConfig(mute_after=1, parole=10, subjects=3), counters)
    for number in range(5):
        book.offend(sender_subject(b"%d" % number))
        book.offend(sender_subject(b"0"))  # offending again does not make a muting younger
    assert [book.muted(sender_subject(b"%d" % number)) for number in range(5)] == [True, False, False, True, True]
    assert counters.get("reputation/evicted_muted") == 3


def test_several_threads_lose_no_offence():
    book = Reputation(DefenseConfig(mute_after=10**9), Counters())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=offend, args=(book, 5000)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert book.score(SUBJECT) == 4 * 5000


def test_time_never_runs_backwards():
    book = reputation()
    book.advance(10)
    book.advance(3)
    assert book.round == 10


def test_after_a_clock_that_ran_far_ahead_the_muted_are_let_back_in_time():
    book = reputation()
    book.advance(10**6)
    offend(book, 40)
    assert book.muted(SUBJECT)
    book.advance(10)  # the clock is set right
    assert book.round == 10
    assert book.muted(SUBJECT)
    book.advance(20)
    assert not book.muted(SUBJECT)


def test_state_comes_back():
    book = reputation()
    offend(book, 4)
    book.advance(3)
    offend(book, 1, sender_subject(b"b"))
    again = reputation()
    again.restore(msgpack.unpackb(msgpack.packb(book.state())))
    assert again.state() == book.state()
    assert again.muted(SUBJECT)
