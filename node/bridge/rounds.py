"""Which round the other swarm is in: nobody there signs it, so it is read off from how far its peers have come."""

from collections.abc import Sequence
from statistics import median_low

LOOK_AHEAD = 4  # rounds
SEARCHED = 512  # rounds beyond the last known one that are searched when nobody is found


class RoundFinder:
    """Follows the rounds of the other swarm, and finds them again after any gap up to SEARCHED."""

    def __init__(self, start: int, max_age: int) -> None:
        self.current = start
        self.found = False
        self.max_age = max_age
        self._back = max_age + LOOK_AHEAD
        self._start = start
        self._offset = 0  # of the search

    def window(self) -> list[int]:
        """Return the rounds to read now: those around the current one, and some further on while nobody is found."""
        around = self._around(self.current)
        return around if self.found else sorted({*around, *self._around(self.current + self._offset)})

    def _around(self, middle: int) -> list[int]:
        return list(range(max(0, middle - self._back), middle + LOOK_AHEAD + 1))

    def saw(self, latest: Sequence[int]) -> None:
        """Take in the latest round of each peer that wrote into the window.

        The current round is the one that half of them have reached: whoever writes ahead, or lags, moves nothing
        while the others are as many. Many names of one attacker do, and nothing here could tell.
        """
        if latest:
            self.current = median_low(latest)
            self.found, self._offset = True, 0
            return
        self.found = False
        self._offset += self._back + LOOK_AHEAD + 1
        if self._offset > SEARCHED:
            self.current, self._offset = self._start, 0  # theirs may count from the beginning again

    def age(self, round: int) -> int | None:
        """Return the age of a round of theirs, 0 for one ahead; None for one that is too old, and while searching."""
        age = max(0, self.current - round)
        return age if self.found and age <= self.max_age else None
