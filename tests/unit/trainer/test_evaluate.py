"""Wilson intervals against values worked out by hand."""

import pytest

from shoal.trainer.evaluate import wilson


def test_wilson_against_values_worked_out_by_hand() -> None:
    # 8 of 10: centre (.8 + .192073) / 1.384146 = .716740, half width .226578
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.490162, 0.943318), abs=1e-6)


def test_wilson_with_z_one() -> None:
    # z = 1, half of 4: centre .5, half = sqrt(.25/4 + 1/64) / 1.25 = .2236068
    assert wilson(2, 4, z=1.0) == pytest.approx((0.5 - 0.2236068, 0.5 + 0.2236068), abs=1e-7)


def test_wilson_has_a_width_at_the_ends() -> None:
    low, high = wilson(0, 300)
    assert low == 0.0
    assert 0.01 < high < 0.013  # "0 of 300 supports only <= about 1 %"
    assert wilson(300, 300)[1] == 1.0


@pytest.mark.parametrize(("hits", "items"), [(1, 0), (-1, 4), (5, 4)])
def test_no_share(hits: int, items: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        wilson(hits, items)
