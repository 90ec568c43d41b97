"""Intervals against tabulated values (Wilson 1927 score interval, z = 1.96)."""

import pytest

from shoal.node.report.intervals import Interval, span, wilson


@pytest.mark.parametrize(
    ("hits", "items", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_agrees_with_the_tables(hits: int, items: int, low: float, high: float) -> None:
    interval = wilson(hits, items)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)
    assert interval.mean == hits / items


@pytest.mark.parametrize(("hits", "items"), [(0, 0), (5, 4), (-1, 3)])
def test_what_is_no_share_is_refused(hits: int, items: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        wilson(hits, items)


def test_intervals_that_touch_overlap() -> None:
    low, high, far = Interval(0.2, 0.1, 0.3, 9), Interval(0.4, 0.3, 0.5, 9), Interval(0.6, 0.51, 0.7, 9)
    assert low.overlaps(high)
    assert high.overlaps(low)
    assert not high.overlaps(far)
    assert not far.overlaps(low)
    assert span(low) == "20.0 % (10.0–30.0)"
