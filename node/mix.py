"""What one update is made of: I own sets and J of peers, as whole sets or joined into the groups of shared prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.defenses.mixing import share_rows
from shoal.node.config import Mixing, MixMode
from shoal.node.sets import OwnSet, PeerCompletion, PeerSet, is_uniform
from shoal.protocol.staleness import Clock, LagClock
from shoal.trainer.batch import Origin, Row, foreign_rows, own_rows
from shoal.trainer.model import Policy


@dataclass(frozen=True, slots=True)
class Mixed:
    """The rows of one update, how many sets of either kind they came from, and for each row its set."""

    rows: list[Row]
    own_sets: int
    peer_sets: int
    origins: list[OwnSet | PeerSet] = field(default_factory=list[OwnSet | PeerSet])


@dataclass(frozen=True, slots=True)
class Mixer:
    """Turns sets into rows for one policy at one moment."""

    mixing: Mixing
    policy: Policy
    clock: Clock
    lags: LagClock
    temperature: float
    fair: bool = True

    def mix(self, own: Sequence[OwnSet], peers: Sequence[PeerSet]) -> Mixed:
        """Return the rows of an update, mixed as configured."""
        return MIXES[self.mixing.mix](self, own, peers)

    def own_rows(self, group: int, own: OwnSet) -> list[Row]:
        """Return an own set as rows of `group`, on the token ids that were sampled."""
        origin = Origin(group, policy_version=own.policy_version, temperature=self.temperature)
        rows = own_rows(self.policy.encode_prompt(own.prompt.text), own.completions, own.rewards, origin)
        for at, read in own.read.items():
            rows[at].old_logps, rows[at].scored_version = read.old_logps, read.scored_version
        return rows

    def peer_rows(self, group: int, peer: PeerSet, completions: Sequence[PeerCompletion]) -> list[Row]:
        """Return completions of a peer as rows of `group`: its text under the local template and tokenizer, as if it
        had been written here (arXiv 2509.08721); age and lag are those of this moment."""
        source = peer.pointer
        age, lag = self.clock.round() - source.round, self.lags.lag(source.round, self.policy.version)
        origin = Origin(group, source.key, source.operator, source.policy_version, age, lag, self.temperature)
        texts = [(completion.text, completion.finished) for completion in completions]
        rewards = [completion.reward for completion in completions]
        rows = foreign_rows(self.policy, peer.prompt.text, texts, rewards, origin)
        for row, completion in zip(rows, completions, strict=True):
            row.weight = completion.weight
            if completion.scored is not None and completion.scored.ids == row.completion_ids:
                row.old_logps, row.scored_version = completion.scored.logps, completion.scored.version
        return rows


def whole_sets(mixer: Mixer, own: Sequence[OwnSet], peers: Sequence[PeerSet]) -> Mixed:
    """Return up to I own sets that carry signal and the sets of peers, each a group of its own.

    Sets of zero variance are left out before the choice: they would take a place and teach nothing.
    """
    informative = [own_set for own_set in own if not own_set.uniform][: mixer.mixing.local]
    rows = [row for group, own_set in enumerate(informative) for row in mixer.own_rows(group, own_set)]
    origins: list[OwnSet | PeerSet] = [own_set for own_set in informative for _ in own_set.completions]
    for group, peer in enumerate(peers, start=len(informative)):
        rows.extend(mixer.peer_rows(group, peer, peer.completions))
        origins.extend([peer] * len(peer.completions))
    return Mixed(rows, len(informative), len(peers), origins)


@dataclass(frozen=True, slots=True)
class _Joinable:
    """One completion of a peer that may join the own group of its prompt."""

    peer: PeerSet
    completion: PeerCompletion

    @property
    def prompt_hash(self) -> bytes:
        return self.peer.prompt_hash

    @property
    def operator(self) -> str:
        return self.peer.pointer.operator

    @property
    def key(self) -> bytes:
        return self.peer.pointer.key

    @property
    def sequence(self) -> int:
        return self.peer.pointer.sequence

    @property
    def row(self) -> int:
        return self.completion.row


def joined_sets(mixer: Mixer, own: Sequence[OwnSet], peers: Sequence[PeerSet]) -> Mixed:
    """Return up to I own sets, each with up to floor(J G / I) completions of peers for the same prompt.

    A group is informative when its rewards differ after the peers' rows have joined: peers' right answers to a prompt
    that this node always fails are the most useful of all.
    """
    mixing = mixer.mixing
    most = mixing.external * mixing.group_size // mixing.local
    candidates = [_Joinable(peer, completion) for peer in peers for completion in peer.completions]
    joinable = share_rows(candidates, most, mixer.fair)
    rows: list[Row] = []
    origins: list[OwnSet | PeerSet] = []
    joined: set[int] = set()
    groups = 0
    for own_set in own:
        foreign = [item for item in joinable if item.prompt_hash == own_set.prompt_hash]
        if groups == mixing.local or is_uniform([*own_set.rewards, *(item.completion.reward for item in foreign)]):
            continue
        rows.extend(mixer.own_rows(groups, own_set))
        origins.extend([own_set] * len(own_set.completions))
        for item in foreign:
            rows.extend(mixer.peer_rows(groups, item.peer, [item.completion]))
            origins.append(item.peer)
            joined.add(item.peer.pointer.arrival)
        groups += 1
    return Mixed(rows, groups, len(joined), origins)


MIXES: dict[MixMode, Callable[[Mixer, Sequence[OwnSet], Sequence[PeerSet]], Mixed]] = {
    "whole": whole_sets,
    "joined": joined_sets,
}
