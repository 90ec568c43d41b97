"""The rollout payload: its schema and the one decoder through which peers' bytes become objects."""

from __future__ import annotations

from typing import Annotated

import msgspec

from shoal.protocol import canonical, compression
from shoal.protocol.columns import (
    ITEM_SIZE,
    all_finite,
    floats,
    ints,
    none_positive,
    pack_floats,
    pack_ints,
)
from shoal.protocol.envelope import HASH_SIZE, MAX_NUMBER, Header
from shoal.protocol.errors import Malformed, TooLarge
from shoal.protocol.limits import DEFAULT_LIMITS, Limits

__all__ = [
    "FINISH_EOS",
    "FINISH_LENGTH",
    "MILLION",
    "PromptName",
    "Rollout",
    "SamplerSettings",
    "check_rollout",
    "decode_rollout",
    "encode_rollout",
    "floats",
    "ints",
    "matches_header",
    "pack_floats",
    "pack_ints",
]

FINISH_EOS = 0
FINISH_LENGTH = 1
MILLION = 1_000_000  # sampler settings are integers in millionths: floats have no canonical form

Hash = Annotated[bytes, msgspec.Meta(min_length=HASH_SIZE, max_length=HASH_SIZE)]
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Setting = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
# \Z and not $, which would allow a line break at the end
TaskName = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,128}\Z")]


class PromptName(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The name of a prompt; a receiver derives it anew and never believes it."""

    scope: Annotated[int, msgspec.Meta(ge=0, le=1)]  # 0 shared by the swarm, 1 the peer's own
    slot: Setting
    task: TaskName
    seed: Number
    index: Number


class SamplerSettings(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """How the completions were sampled, as the sender claims it."""

    temperature: Setting  # millionths
    top_p: Setting  # millionths
    top_k: Setting  # 0 is off
    max_tokens: Setting


class Rollout(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The completions of one prompt by one node, column by column; see columns for the raw ones."""

    prompt: PromptName
    prompt_hash: Hash
    lineage: Hash
    tokenizer: Hash
    sampler: SamplerSettings
    round: Number
    policy_version: Number
    completions: tuple[str, ...]
    finish: bytes  # one byte a completion: FINISH_EOS or FINISH_LENGTH
    token_ids: tuple[bytes, ...]  # uint32 columns; an empty tuple: not sent
    logps: tuple[bytes, ...]  # float32 columns, behaviour log-probs of token_ids; an empty tuple: not sent
    mean_logps: bytes  # float32 column, one for each completion
    rewards: bytes  # float32 column, claimed; what could not be scored is claimed as 0


def encode_rollout(rollout: Rollout) -> bytes:
    """The blob of a rollout: canonical msgpack in one zstd frame. It does not judge; see check_rollout."""
    return compression.compress(canonical.encode(rollout))


def decode_rollout(blob: bytes, limits: Limits = DEFAULT_LIMITS) -> Rollout:
    """Open a blob. Raises Malformed or TooLarge, and nothing else, whatever the bytes are.

    Order: size and declared size, decompression, pre-scan, decoding, schema, canonical form, columns.
    """
    rollout = canonical.decode(compression.decompress(blob, limits), Rollout, limits)
    check_rollout(rollout, limits)
    return rollout


def check_rollout(rollout: Rollout, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise Malformed or TooLarge for a rollout whose columns do not fit its completions."""
    count = len(rollout.completions)
    if count == 0:
        raise Malformed("no_completions")
    if count > limits.completions:
        raise TooLarge("too_many_completions", f"{count}")
    for text in rollout.completions:
        if len(text.encode("utf-8", errors="surrogatepass")) > limits.completion_bytes:
            raise TooLarge("text_too_long")
    if len(rollout.finish) != count or rollout.finish.strip(bytes((FINISH_EOS, FINISH_LENGTH))):
        raise Malformed("finish_column")
    _check_numbers(rollout, count)
    _check_tokens(rollout, count)


def _check_numbers(rollout: Rollout, count: int) -> None:
    size = count * ITEM_SIZE
    if len(rollout.mean_logps) != size or len(rollout.rewards) != size:
        raise Malformed("column_length", f"{count} completions need columns of {size} bytes")
    if not all_finite(rollout.mean_logps) or not all_finite(rollout.rewards):
        raise Malformed("not_finite")
    if not none_positive(rollout.mean_logps):
        raise Malformed("positive_logp")


def _check_tokens(rollout: Rollout, count: int) -> None:
    """Optional columns are sent for all completions or for none, and log-probs only beside the ids they belong to."""
    if len(rollout.token_ids) not in (0, count) or len(rollout.logps) not in (0, len(rollout.token_ids)):
        raise Malformed("column_count")
    if any(len(column) % ITEM_SIZE for column in rollout.token_ids):
        raise Malformed("column_length", "token ids")
    if any(len(logps) != len(ids) for logps, ids in zip(rollout.logps, rollout.token_ids, strict=False)):
        raise Malformed("column_length", "log-probs and token ids differ in length")
    for column in rollout.logps:
        if not all_finite(column):
            raise Malformed("not_finite")
        if not none_positive(column):
            raise Malformed("positive_logp")


def matches_header(rollout: Rollout, header: Header) -> None:
    """Raise Malformed unless every field that the payload repeats equals the signed header's."""
    repeated = (rollout.round, rollout.policy_version, rollout.prompt_hash)
    if repeated != (header.round, header.policy_version, header.prompt_hash):
        raise Malformed("header_mismatch")
