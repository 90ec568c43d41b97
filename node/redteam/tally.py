"""What became of peers' completions, by who sent them: a simulation knows its attackers, a node never does."""

import math
from collections import defaultdict
from collections.abc import Sequence

from shoal.defenses.pointer import Pointer
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import Verdict
from shoal.node.events import DIGITS, Event
from shoal.node.redteam.cells import APPRAISAL, ATTACKER, HONEST
from shoal.node.sets import OwnSet, PeerCompletion, PeerSet
from shoal.protocol.columns import floats
from shoal.protocol.errors import ProtocolError
from shoal.protocol.wire import decode_rollout

Key = tuple[str, str, bool, str]
"""Sender's kind, task, whether rewarded, and what became of it ("accept", or action, layer and reason)."""


class Tally:
    """A witness that counts completions of peers. `attackers` holds the keys of the nodes that attack.

    Whether a completion that was refused before its grading is a rewarded one, its sender's claim must tell: that is
    the truth of an honest sender, and nothing is made of an attacker's.
    """

    def __init__(self, attackers: frozenset[bytes]) -> None:
        self.attackers = attackers
        self._rows: dict[Key, list[float]] = defaultdict(lambda: [0, 0.0])

    def published(self, own: OwnSet, announcement: bytes, blob: bytes) -> None:
        """Forget it: only what comes from peers is counted."""

    def fetched(self, pointer: Pointer, blob: bytes, screened: Screened | Verdict, peer: PeerSet | None) -> None:
        """Count the rows of one rollout."""
        sender = ATTACKER if pointer.key in self.attackers else HONEST
        if isinstance(screened, Verdict):
            task, claims = _claimed(blob)
            verdicts: Sequence[Verdict] = [screened] * len(claims)
        else:
            task, claims = screened.prompt.task, floats(screened.rollout.rewards)
            verdicts = screened.verdicts
        kept = {completion.row: completion for completion in peer.completions} if peer is not None else {}
        for row, (verdict, claim) in enumerate(zip(verdicts, claims, strict=True)):
            rewarded, outcome, weight = _fate(verdict, claim, kept.get(row))
            counted = self._rows[sender, task, rewarded, outcome]
            counted[0] += 1
            counted[1] += weight

    def take(self, round_: int, own: Sequence[OwnSet]) -> Event:
        """Return the record of one pass, with the rewarded and all own completions by task, and begin anew."""
        rates: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for own_set in own:
            graded = [reward for reward in own_set.rewards if not math.isnan(reward)]
            rates[own_set.prompt.task][0] += sum(reward > 0.0 for reward in graded)
            rates[own_set.prompt.task][1] += len(graded)
        rows = [[*key, int(count), round(weight, DIGITS)] for key, (count, weight) in sorted(self._rows.items())]
        self._rows.clear()
        return {"event": "senders", "round": round_, "own": dict(sorted(rates.items())), "rows": rows}


def _claimed(blob: bytes) -> tuple[str, Sequence[float]]:
    """Return task and claimed rewards of a rollout that was refused whole; one row that says nothing if unreadable."""
    try:
        rollout = decode_rollout(blob)
    except ProtocolError:
        return "", (0.0,)
    return rollout.prompt.task, floats(rollout.rewards)


def _fate(verdict: Verdict, claim: float, kept: PeerCompletion | None) -> tuple[bool, str, float]:
    """Return of one row whether it is rewarded, what became of it, and the weight with which it may train."""
    if not verdict.usable:
        # The layers of the appraisal judge only what the local verifier has rewarded.
        outcome = f"{verdict.action.value} {verdict.layer}/{verdict.reason}"
        return verdict.layer in APPRAISAL or claim > 0.0, outcome, 0.0
    if kept is None:
        return claim > 0.0, "reject whole", 0.0
    if math.isnan(kept.reward):
        return False, "reject verifier/unscorable", 0.0
    action = "accept" if kept.weight == 1.0 else "weigh" if kept.weight > 0.0 else "quarantine"  # 0 trains nothing
    named = f"{action} {verdict.layer}/{verdict.reason}" if verdict.layer else f"{action} reputation/operator"
    return kept.reward > 0.0, "accept" if action == "accept" else named, kept.weight
