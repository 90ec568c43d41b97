"""Judge models for layer 11: a local model directory, or a chat server; both answer greedily with a few tokens."""

import asyncio
import json
import logging
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shoal.defenses.config import DefenseConfig
from shoal.defenses.judge import Ask, Judge, JudgeUnavailable
from shoal.defenses.text import safe
from shoal.defenses.verdict import Counters
from shoal.node.defense_options import JUDGE_KEY, NO_JUDGE, DefenseOptions, check_defenses, is_url
from shoal.protocol.errors import UsageError

if TYPE_CHECKING:
    from shoal.trainer.model import Policy

log = logging.getLogger(__name__)

ANSWER_TOKENS = 16  # one word, or one small object
ASK_SECONDS = 20.0  # in all; after a failure nothing more is asked in the pass
REPLY_BYTES = 64 * 1024


def make_judge(
    settings: DefenseOptions, config: DefenseConfig, counters: Counters, rng: random.Random | None = None
) -> Judge | None:
    """Return the judge that the settings name, None when there is none or the layer is off.

    `rng` (a seeded one in a simulation; the system's when left out) draws fences and planted answers. Raises UsageError
    for settings that cannot be, EnvironmentFault for a directory without a usable model.
    """
    if settings.judge == NO_JUDGE or not config.on("judge"):
        return None
    budget = replace(config, judge_budget=settings.judge_budget)
    return Judge(_backend(settings), budget, counters, rng)


def _backend(settings: DefenseOptions) -> Ask:
    check_defenses(settings)
    if not is_url(settings.judge):
        return local_judge(Path(settings.judge).absolute())
    key = os.environ.get(JUDGE_KEY, "")
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise UsageError(f"{JUDGE_KEY}: a key has no spaces, line breaks or letters beyond ASCII")
    if key and not _private(settings.judge):
        raise UsageError(
            f"--judge {settings.judge!r}: with {JUDGE_KEY} set, give an https URL or an address of this machine, or "
            "the key would travel in the clear"
        )
    return RemoteJudge(settings.judge, settings.judge_model, key)


def _private(url: str) -> bool:
    """Return whether nobody between here and the server can read along."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


class LocalJudge:
    """A model on this machine, asked through its chat template where it has one."""

    def __init__(self, policy: "Policy") -> None:
        """Wrap a policy that nobody trains."""
        import torch

        from shoal.trainer.engine import Sampling, make_engine

        self._policy = policy
        self._engine = make_engine(policy)
        self._sampling = Sampling(temperature=0.0, max_tokens=ANSWER_TOKENS)
        self._generator = torch.Generator(policy.device)
        self._context: int = getattr(policy.model.config, "max_position_embeddings", None) or 1 << 30
        tokens = [*policy.tokenizer.all_special_tokens, *policy.tokenizer.get_added_vocab()]
        longest_first = sorted({token for token in tokens if token}, key=lambda token: (-len(token), token))
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def __call__(self, question: str) -> str:
        """Return the answer; "" for a question beyond the model's context. Raises JudgeUnavailable without memory."""
        plain = self._special.sub(lambda found: " ".join(found[0]), question)
        if len(self._policy.encode_prompt(plain)) + ANSWER_TOKENS > self._context:
            return ""
        try:
            [[answer]] = self._engine.sample([plain], 1, self._sampling, self._generator)
        except (RuntimeError, MemoryError) as error:  # torch has no narrower one for want of memory
            raise JudgeUnavailable(f"the judge model failed: {safe(str(error))}") from error
        return answer.text


@cache
def local_judge(folder: Path) -> LocalJudge:
    """Return the judge of a model directory; all nodes of one process share it."""
    from shoal.trainer.model import load_policy

    return LocalJudge(load_policy(folder))


class RemoteJudge:
    """A server that speaks the chat protocol of OpenAI (vLLM, llama.cpp, Ollama, and others do)."""

    def __init__(self, url: str, model: str, key: str = "", seconds: float = ASK_SECONDS) -> None:
        """Name the server, with or without /chat/completions, the model there, and the key if it wants one."""
        base = url.rstrip("/")
        self._url = base if base.endswith("/chat/completions") else f"{base}/chat/completions"
        self._model = model
        self._headers = {"Accept-Encoding": "identity"}  # a compressed answer could be a bomb
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._seconds = seconds

    def __call__(self, question: str) -> str:
        """Return the answer of the model. Raises JudgeUnavailable when none came in time, or no usable one.

        It has an event loop of its own in a thread of its own: whoever asks may stand in one, and waits.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="shoal-judge") as thread:
            try:
                return content(thread.submit(asyncio.run, self._fetch(question)).result())
            except JudgeUnavailable as error:
                log.warning("the judge gave no answer: %s", error)
                raise

    async def _fetch(self, question: str) -> bytes:
        """Ask, in a limited time for all of it. A redirect is an error: key and text are for this host alone."""
        import aiohttp

        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": ANSWER_TOKENS,
        }
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers, auto_decompress=False) as session,
                session.post(self._url, json=body, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise JudgeUnavailable(f"the server answers {answer.status}")
                return await _limited(answer.content)
        except TimeoutError as error:
            raise JudgeUnavailable(f"no answer within {self._seconds:g} s") from error
        except (aiohttp.ClientError, ValueError) as error:  # the library raises ValueError for some odd addresses
            raise JudgeUnavailable(safe(str(error)) or type(error).__name__) from error


async def _limited(stream: Any) -> bytes:
    data = bytearray()
    async for chunk in stream.iter_any():
        data += chunk
        if len(data) > REPLY_BYTES:
            raise JudgeUnavailable(f"the reply is larger than {REPLY_BYTES} bytes")
    return bytes(data)


def content(reply: bytes) -> str:
    """Return what the model said in a reply; JudgeUnavailable for a reply of another form."""
    try:
        said = json.loads(reply)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise JudgeUnavailable("the reply has no choices[0].message.content") from error
    if not isinstance(said, str):
        raise JudgeUnavailable("the reply has no text: the model said nothing within its few tokens")
    return said
