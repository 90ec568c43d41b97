"""Small real pieces for tests of the node: identities, pointers and peers' sets."""

import hashlib

from shoal.defenses.pointer import Pointer
from shoal.node.sets import OwnSet, PeerCompletion, PeerSet
from shoal.protocol.envelope import PROTOCOL_VERSION, Header, Kind, seal
from shoal.protocol.identity import Identity
from shoal.protocol.prompts import DerivedPrompt, prompt_hash
from shoal.trainer.engine import Completion
from shoal.trainer.model import Policy
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.strings import StringTask


def identity(number: int) -> Identity:
    return Identity.from_seed(hashlib.sha256(f"test/{number}".encode()).digest())


def prompt(index: int = 0) -> Prompt:
    return StringTask("reverse").prompt(1, index)


def pointer(
    node: int, sequence: int = 0, operator: str | None = None, of: Prompt | None = None, round: int = 0
) -> Pointer:
    owner = identity(node)
    header = Header(
        kind=Kind.ROLLOUT,
        version=PROTOCOL_VERSION,
        swarm_id=bytes(32),
        key=owner.key,
        round=round,
        policy_version=sequence,
        prompt_hash=prompt_hash((of or prompt()).text),
        sequence=sequence,
        payload_length=1,
        payload_hash=bytes(32),
    )
    arrival = node * 1_000_000 + sequence
    return Pointer(seal(owner, header), operator or f"operator-{node}", round, arrival)


def own_set(policy: Policy, of: Prompt, texts: list[str], rewards: list[float]) -> OwnSet:
    completions = []
    for text in texts:
        ids = policy.encode_completion(text, finished=True)
        completions.append(Completion(ids, [-0.5] * len(ids), True, text))
    derived = DerivedPrompt(0, 0, of.task, of.seed, of.index)
    return OwnSet(derived, of, tuple(completions), tuple(rewards), 3, 0)


def peer_set(node: int, of: Prompt, texts: list[str], rewards: list[float], sequence: int = 0) -> PeerSet:
    completions = [
        PeerCompletion(row, text, True, reward, 1.0)
        for row, (text, reward) in enumerate(zip(texts, rewards, strict=True))
    ]
    return PeerSet(pointer(node, sequence, of=of), of, tuple(completions))
