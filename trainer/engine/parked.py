"""Completions that are begun in one call and go on in a later one: partial rollouts (APRIL, arXiv 2509.18521).

A row carries all that its rest depends on, its draws included: so no token is lost or drawn twice, however often it
is parked, and what it becomes depends neither on its neighbours nor on when it was parked. Only its keys and values
are not kept; they are computed anew, by the weights of the day, when it goes on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from shoal.protocol.errors import UsageError
from shoal.trainer.engine.sampling import Completion, Engine, Sampling, completed, uniforms
from shoal.trainer.model import Policy

Enough = Callable[[Sequence[bool]], bool]
"""Told which rows are done, by their places: tells whether the others shall be parked now."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A completion that is not done; one that waits for its first token has no ids yet.

    `draws` holds the row's uniforms, one for each token that it may have; `versions` the policy version by which each
    token so far was sampled.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    draws: tuple[float, ...]
    ids: tuple[int, ...] = ()
    logps: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()

    def state(self) -> list[object]:
        """Return plain types from which `restore` makes an equal row."""
        parts = self.prompt_ids, self.draws, self.ids, self.logps, self.versions
        return [self.prompt, *map(list, parts)]

    @classmethod
    def restore(cls, state: Sequence[object]) -> "Parked":
        """Return the row that `state` described."""
        prompt, *parts = state
        return cls(str(prompt), *map(tuple, parts))  # type: ignore[arg-type]


@runtime_checkable
class ParkingEngine(Engine, Protocol):
    """An engine whose completions can be parked and continued."""

    def begin(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[Parked]:
        """Return `group_size` rows for each prompt, one after the other, that wait for their first token."""
        ...

    def proceed(
        self, rows: Sequence[Parked], sampling: Sampling, enough: Enough | None = None
    ) -> list[Completion | Parked]:
        """Sample until every row is done, or until `enough` says that the others shall be parked."""
        ...


def begin(
    policy: Policy, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
) -> list[Parked]:
    """Return the rows of one `sample` call; the generator advances as it does there."""
    draws_BT = uniforms(len(prompts) * group_size, sampling.max_tokens, generator).tolist()
    encoded = {text: tuple(policy.encode_prompt(text)) for text in dict.fromkeys(prompts)}
    texts = [text for text in prompts for _ in range(group_size)]
    return [Parked(text, encoded[text], tuple(draws)) for text, draws in zip(texts, draws_BT, strict=True)]


def require_draws(rows: Sequence[Parked], sampling: Sampling) -> None:
    """Raise UsageError where a row was begun for fewer tokens than it may have now, or has more already."""
    for row in rows:
        if len(row.draws) < sampling.max_tokens or len(row.ids) >= sampling.max_tokens:
            raise UsageError(
                f"a parked row has {len(row.draws)} draws and {len(row.ids)} tokens, and max_tokens is "
                f"{sampling.max_tokens}: continue it with the settings it was begun with"
            )


def extended(
    policy: Policy, rows: Sequence[Parked], drawn: Sequence[tuple[list[int], list[float], bool]], version: int
) -> list[Completion | Parked]:
    """Return each row with what it drew by this policy version, as (ids, logps, whether it is done)."""
    longer = [
        replace(
            row,
            ids=row.ids + tuple(ids),
            logps=row.logps + tuple(logps),
            versions=row.versions + (version,) * len(ids),
        )
        for row, (ids, logps, _) in zip(rows, drawn, strict=True)
    ]
    done = [row for row, (_, _, over) in zip(longer, drawn, strict=True) if over]
    mixed = [row.versions if set(row.versions) != {version} else () for row in done]
    whole = completed(policy, [(row.ids, row.logps, versions) for row, versions in zip(done, mixed, strict=True)])
    ready = iter(whole)
    return [next(ready) if over else row for row, (_, _, over) in zip(longer, drawn, strict=True)]
