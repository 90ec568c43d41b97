"""What a replay finds: comparisons, each between what the ledger says and what was worked out again."""

from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.node.sets import OwnSet, PeerSet
from shoal.node.store.records import PassRecord, RolloutRecord

State = Literal["equal", "differs", "recorded", "gone"]
"""`recorded`: taken over, since nobody can work it out again. `gone`: a blob is evicted, so nothing is compared."""

Outcome = Literal["equal", "differs", "incomplete"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison."""

    what: str
    state: State
    recorded: str = ""
    recomputed: str = ""


@dataclass(slots=True)
class Findings:
    """Comparisons in the order in which they were made."""

    all: list[Finding] = field(default_factory=list[Finding])

    def compare(self, what: str, recorded: object, recomputed: object) -> bool:
        """Note whether two things are equal, and return it."""
        equal = recorded == recomputed
        self.note(what, "equal" if equal else "differs", str(recorded), str(recomputed))
        return equal

    def note(self, what: str, state: State, recorded: str = "", recomputed: str = "") -> None:
        """Note a finding that is no plain comparison."""
        self.all.append(Finding(what, state, recorded, recomputed))

    def having(self, state: State) -> list[Finding]:
        """Return the findings of one state."""
        return [finding for finding in self.all if finding.state == state]


@dataclass(slots=True)
class RolloutReplay:
    """One rollout; `remade` is its set for the mix, as far as it could be made again."""

    record: RolloutRecord
    findings: Findings = field(default_factory=Findings)
    remade: OwnSet | PeerSet | None = None


@dataclass(slots=True)
class PassReplay:
    """One pass with its rollouts."""

    done: PassRecord
    rollouts: list[RolloutReplay]
    findings: Findings = field(default_factory=Findings)

    @property
    def differences(self) -> list[tuple[str, Finding]]:
        """Everything that differs, with where."""
        found = [("pass", finding) for finding in self.findings.having("differs")]
        for at, rollout in enumerate(self.rollouts):
            found += [(f"rollout {at + 1}", finding) for finding in rollout.findings.having("differs")]
        return found

    @property
    def outcome(self) -> Outcome:
        """`incomplete`: nothing differs, but too much is gone to make the update's inputs again."""
        if self.differences:
            return "differs"
        return "incomplete" if self.findings.having("gone") else "equal"

    def plain(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "pass": self.done.id,
            "round": self.done.round,
            "number": self.done.number,
            "outcome": self.outcome,
            "inputs_hash": self.done.inputs_hash.hex(),
            "findings": _plain(self.findings),
            "rollouts": [
                {
                    "own": rollout.record.own,
                    "key": rollout.record.key.hex(),
                    "round": rollout.record.round,
                    "digest": rollout.record.digest.hex() if rollout.record.digest else None,
                    "used_rows": rollout.record.used_rows,
                    "trained_rows": rollout.record.trained_rows,
                    "findings": _plain(rollout.findings),
                }
                for rollout in self.rollouts
            ],
        }


def _plain(findings: Findings) -> list[dict[str, str]]:
    return [
        {"what": one.what, "state": one.state, "recorded": one.recorded, "recomputed": one.recomputed}
        for one in findings.all
    ]
