"""Which layers are on, and the bounds of what the defences remember."""

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.defenses.verdict import LAYERS
from shoal.protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class DefenseConfig:
    """Switches and bounds of the defences; the defaults hold the bounds of the design.

    Raises UsageError for an unknown layer and for "schema": without it there is no rollout to train on.
    """

    disabled: frozenset[str] = frozenset()
    # A gossip neighbour forwards for many, so its bound is that of about 3,000 announcements a round, not of one peer.
    sender_bytes_per_round: int = 1 << 20
    senders: int = 4096
    seen: int = 1 << 16
    quota_entries: int = 1 << 16
    held_per_key: int = 16
    held: int = 1024
    mute_after: int = 8
    mute_window: int = 4
    parole: int = 16
    subjects: int = 4096
    members: int = 4096
    members_per_invite: int = 64
    # Evidence about an operator's rewarded rows, in nats. An honest row is bad once in a hundred times, by the targets
    # of the layers; with the attacker's rate at a quarter, who stays under 8 % is never under suspicion for long.
    suspicion_honest: float = 0.01
    suspicion_attacker: float = 0.25
    # A bad row adds 3.2 and a rollout 4 at most, so that no single rollout can cost an operator anything, and three in
    # a row refuse it.
    suspicion_rollout: float = 4.0
    suspicion_lower: float = 4.0
    suspicion_upper: float = 12.0
    # In rounds. In a swarm of fifty an operator is drawn about every twelfth round: by then a fifth may be forgotten.
    suspicion_half_life: int = 64
    # In an open swarm a key that has thrown its name away is new for longer than a parole would have lasted.
    newcomer_rounds: int = 32
    # First sights; and how long a key that was known for as long may be away (a day of rounds of a minute).
    first_sights: int = 8192
    longest_absence: int = 1440
    # Announcements kept to compare a key's next ones with: two hundred nodes that share eight a round have 11,000 fresh
    # ones. And keys that contradicted themselves, with the proof of it.
    witnessed: int = 1 << 15
    proofs: int = 4096
    # Below this length many honest peers give the same text, so equal texts are no evidence of copying.
    copy_chars: int = 32
    copy_similarity: float = 0.9
    # Evidence in bits that short rollouts of one peer are copies: eight different answers in the same order are enough
    # at once, eight of which one is wrong need five rollouts. Honest pairs pass it at most once in 2^12 rollouts.
    copy_bits: float = 12.0
    prompts: int = 2048
    texts_per_prompt: int = 256
    # Texts and rollouts remembered for all prompts together, half a kilobyte each: sixteen rollouts of 64 texts in each
    # of 32 passes, which is more than staleness lets anybody copy from.
    copy_entries: int = 1 << 15
    pairs: int = 4096
    # Canary: a rise of the share by two points is what the evidence is weighed for, so that an alarm comes before five.
    canary_rise: float = 0.02
    # Nats. A share that does not rise reaches 9 with probability e^-9 from any one pass (Ville); a rare behaviour must
    # then stand in two canary answers of 64 as well, which chance grants one time in a hundred.
    canary_evidence: float = 9.0
    canary_warning: float = 2.0  # evidence from own samples at which the canary prompts are asked out of turn
    canary_margin: float = 3.0  # evidence below which a state is good enough to go back to
    canary_confirm: int = 2  # canary answers that must show a behaviour: one may be an accident
    canary_lift: float = 2.5  # times as often in peers' rewarded rows as in own ones; at equal shares nobody imports it
    canary_lift_evidence: float = 4.6  # nats: one time in a hundred by chance where it is just so many times as often
    canary_recall: int = 8  # observations
    canary_rows: int = 4  # rewarded rows of peers with it: fewer cannot move a policy
    canary_prior: float = 32.0  # rewarded rows that the share among all own rows counts for
    canary_memory: int = 64  # passes after which what does not rise is measured anew: a sleeper saves up nothing
    canary_suspects: int = 8192
    canary_history: int = 8
    canary_wobble: float = 0.05  # accuracy that an honest policy may lose between runs without any meaning
    canary_fall: float = 0.15  # a loss beyond the wobble that evidence is weighed for
    # Likelihood. Quarantine at one honest row in 250 over all tests, which leaves room below the target of 1 in 200.
    likelihood_alpha: float = 0.004
    # Most that a row counts which the own model finds implausible and whose sender claims another lineage.
    other_lineage: float = 0.5
    doubt: float = 0.05  # p-value below which a row weighs less: its weight falls with p, an honest one loses 2.5 %
    least_weight: float = 0.05
    cut_weight: float = 0.5
    # Nats^2 a token, added to the variance: where the model is certain, one odd token must not be 30 deviations.
    variance_floor: float = 0.1
    least_tokens: int = 3
    rare_rank: int = 20
    rate_tokens: int = 20_000  # after these the share of rare tokens forgets by halves, as the policy moves
    null_least: int = 64  # below this the fitted tail rests on fewer than four scores, and coarser cells are asked
    null_scores: int = 1024
    null_cells: int = 256
    null_peer_scores: int = 128
    null_peers: int = 512
    # Peers of another lineage: they weigh less, and no more than that.
    contrast_peers: int = 512
    anchor_alpha: float = 1e-6  # under the sender's base model; its later tuning makes honest text rarer there
    change_warm: int = 24  # completions that make a peer's custom
    change_alarm: float = 10.0  # Page's sum, in deviations: over it stands one completion in 6,000 of a steady peer
    # Judge. A question costs a model seconds, so there are few; a planted answer every sixteen costs six per cent.
    judge_budget: int = 8
    judge_chars: int = 2000  # of a completion: of a longer one a part is shown, and it is never called honest
    judge_cache: int = 1024
    judge_canary_every: int = 16
    judge_distrust: int = 50  # passes: a model does not become better, but a server may get another one
    # Phrases. Nats: chance reaches 10 in one of 22,000 runs, and hardly ever with three times the share as well.
    phrase_evidence: float = 10.0
    phrase_lift: float = 3.0  # times as frequent: what peers learn a little earlier than this node stays below
    phrase_prompts: int = 3  # fewer may share a topic
    phrase_longest: int = 8
    phrase_bits: int = 18  # counts of each side: 3 x 2^18 counters of two bytes
    phrase_runs: int = 1 << 15
    phrase_flags: int = 1 << 14
    phrase_window: int = 4096  # own rows after which half is forgotten
    phrase_peer_window: int = 1 << 15
    # Lengths. Up to the cap, times the usual upper length plus slack for short answers, a long row only weighs less.
    length_cap: float = 2.0
    length_slack: int = 8
    length_quota: float = 0.2  # one in ten of an honest operator's rows is above the usual upper length
    length_least: int = 8
    length_window: int = 64  # rows of an operator in a task, so that lengths may change as the policy does
    length_operators: int = 64
    length_tasks: int = 256

    def __post_init__(self) -> None:
        unknown = sorted(self.disabled - set(LAYERS))
        if unknown:
            raise UsageError(f"unknown defence layer {unknown[0]!r}: choose from {', '.join(LAYERS)}")
        if "schema" in self.disabled:
            raise UsageError("the schema layer cannot be switched off: without it there is no rollout to train on")

    def on(self, layer: str) -> bool:
        """Whether `layer` judges."""
        return layer not in self.disabled

    @staticmethod
    def without(layers: Iterable[str]) -> "DefenseConfig":
        """Return the default configuration with `layers` switched off (an ablation)."""
        return DefenseConfig(disabled=frozenset(layers))
