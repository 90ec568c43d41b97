"""Layer 4: prompt, answer and tests come from the local task registry; the sender only names a slot."""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.defenses.verdict import Verdict, reject
from shoal.protocol.envelope import Header
from shoal.protocol.errors import ProtocolError
from shoal.protocol.manifest import Manifest
from shoal.protocol.prompts import SCOPE_SHARED, SHARED, is_held_out, prompt_hash
from shoal.protocol.wire import Rollout


@dataclass(frozen=True, slots=True)
class RebuiltPrompt:
    """A prompt as the local registry builds it: what a peer's claims are compared with."""

    task: str
    seed: int
    index: int
    text: str
    prompt_hash: bytes
    held_out: bool

    @staticmethod
    def of(task: str, seed: int, index: int, text: str) -> "RebuiltPrompt":
        """Return the prompt with the hash of its text, and whether that text is held out."""
        digest = prompt_hash(text)
        return RebuiltPrompt(task, seed, index, text, digest, is_held_out(digest))


Rebuild = Callable[[int, bytes, int], RebuiltPrompt | None]
"""(round, scope key, slot) → the derived prompt, None when this node lacks its task; may raise ProtocolError."""


def check_provenance(rollout: Rollout, header: Header, manifest: Manifest, rebuild: Rebuild) -> RebuiltPrompt | Verdict:
    """Return the prompt that the rollout must be about, rebuilt here, or the verdict against it."""
    reason = _unfit_claim(rollout, manifest)
    if reason:
        return reject("provenance", reason)
    scope_key = SHARED if rollout.prompt.scope == SCOPE_SHARED else header.key
    try:
        prompt = rebuild(header.round, scope_key, rollout.prompt.slot)
    except ProtocolError as error:
        return reject("provenance", error.reason)
    if prompt is None:
        return reject("provenance", "cannot_rebuild")
    reason = _other_prompt(rollout, prompt)
    return reject("provenance", reason) if reason else prompt


def _unfit_claim(rollout: Rollout, manifest: Manifest) -> str:
    """Return why the manifest does not allow this rollout, or ""."""
    limits = manifest.limits
    shared = rollout.prompt.scope == SCOPE_SHARED
    if rollout.prompt.slot >= (limits.shared_slots if shared else limits.own_slots):
        return "slot_out_of_range"
    if not shared and manifest.admission.mode == "open":
        return "own_prompt_in_open_swarm"  # without admission keys are free: one is ground until its prompts suit
    if manifest.lineages and rollout.lineage.hex() not in manifest.lineages:
        return "lineage"
    sampler = rollout.sampler
    in_range = (
        limits.temperature[0] <= sampler.temperature <= limits.temperature[1]
        and limits.top_p[0] <= sampler.top_p <= limits.top_p[1]
        and 1 <= sampler.max_tokens <= limits.max_tokens
    )
    return "" if in_range else "sampler_out_of_range"


def _other_prompt(rollout: Rollout, prompt: RebuiltPrompt) -> str:
    """Return why the named prompt is not the derived one, or ""."""
    named = (rollout.prompt.task, rollout.prompt.seed, rollout.prompt.index)
    if named != (prompt.task, prompt.seed, prompt.index):
        return "other_prompt"
    if rollout.prompt_hash != prompt.prompt_hash:
        return "other_prompt_text"
    return "held_out" if prompt.held_out else ""
