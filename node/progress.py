"""How far a run is, and when it may end."""

from collections.abc import Callable, Sequence


class Progress:
    """Counts the rounds of each arm as work; a resumed run starts its clock where it took up."""

    def __init__(self, arms: Sequence[str], rounds: int, nodes: int, now: Callable[[], float]) -> None:
        self.rounds = max(1, rounds)
        # An arm in which every node samples for the whole swarm takes up to that much longer.
        self.weights = {arm: float(max(1, nodes)) if arm == "isolated_total" else 1.0 for arm in arms}
        self.done = dict.fromkeys(arms, 0)
        self.now = now
        self.began: tuple[float, float] | None = None

    @property
    def share(self) -> float:
        """Return the share of the work that is done, in [0, 1]."""
        total = sum(self.weights.values()) or 1.0
        return sum(self.weights[arm] * min(1.0, done / self.rounds) for arm, done in self.done.items()) / total

    def reached(self, arm: str, round_: int) -> None:
        """Note that an arm has come to a round; the first call starts the clock at the round before."""
        if arm not in self.done:
            return
        if self.began is None:
            self.done[arm] = max(0, round_ - 1)
            self.began = self.now(), self.share
        self.done[arm] = max(self.done[arm], round_)

    def remaining(self) -> float | None:
        """Return the seconds that are left at the pace so far, None before there is one."""
        if self.began is None or self.share <= self.began[1]:
            return None
        started, share = self.began
        return (self.now() - started) * (1 - self.share) / (self.share - share)


def duration(seconds: float) -> str:
    """Return a time span in words, e.g. 2 min 05 s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
