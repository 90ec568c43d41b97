"""How sure a share is that was measured on a number of items."""

import math

Z_95 = 1.959963984540054  # two-sided 95 % point of the normal distribution


def wilson(hits: float, items: int, z: float = Z_95) -> tuple[float, float]:
    """Return the Wilson score interval (low, high) of a share (Wilson 1927), here of `hits` out of `items`.

    It stays inside [0, 1] and has a width at no hits and at all hits, where the normal interval has none. Raises
    ValueError when `hits` of `items` is no share.
    """
    if items <= 0 or not 0 <= hits <= items:
        raise ValueError(f"{hits} of {items} is no share")
    share = hits / items
    weight = z * z / items
    centre = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / items + weight / (4 * items)) / (1 + weight)
    # at both ends the bound equals the share, which rounding would miss
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))
