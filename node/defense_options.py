"""What the defences can be told; the docstring of a field is its help text."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from shoal.protocol.errors import UsageError

JUDGE_KEY = "SHOAL_JUDGE_KEY"  # in the environment alone: a file of settings is shown and copied
NO_JUDGE = "off"


@dataclass(frozen=True, kw_only=True)
class DefenseOptions:
    """Models beside the own one: a judge of what the other defences are in doubt about, and the bases of others."""

    judge: str = NO_JUDGE
    """off; the directory of a model (PATH); or the URL of a server that speaks OpenAI's chat protocol, e.g.
    http://127.0.0.1:8000/v1, with its key in SHOAL_JUDGE_KEY if it wants one. It reads rewarded completions that
    other defences are in doubt about, and can only lower them. It is put to the test with planted answers: a model that
    lets these pass, or cannot keep to one word, is not asked for a while. Small models fail."""
    judge_model: str = ""
    """Name of the model on that server."""
    judge_budget: int = 8
    """Most questions in one pass; what is in doubt beyond that stays as it was."""
    anchors: tuple[str, ...] = ()
    """Directories of public base models that peers of other lineages train: what such a peer writes is compared with
    its own base. Without them it is compared with itself and with other peers alone."""


def check_defenses(options: DefenseOptions) -> None:
    """Raise UsageError for options that cannot be; nothing is loaded and nobody is asked."""
    if not 1 <= options.judge_budget <= 1024:
        raise UsageError(f"--judge-budget {options.judge_budget}: must lie between 1 and 1024")
    if not options.judge:
        raise UsageError(f"--judge is empty: give {NO_JUDGE}, the directory of a model, or a URL")
    if is_url(options.judge):
        _check_url(options.judge)
        if not options.judge_model:
            raise UsageError("--judge with a URL needs --judge-model, the name of the model on that server")
    elif options.judge_model:
        raise UsageError("--judge-model names a model on a server: give its URL as --judge, or leave it out")


def is_url(judge: str) -> bool:
    """Return whether a judge is a server and no directory."""
    return "://" in judge


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--judge {url!r}: {error}") from error
    if parts.username is not None or parts.query or parts.fragment:  # not shown: it may hold a key
        raise UsageError(f"--judge: give an address alone, without user, query or #; a key belongs into {JUDGE_KEY}")
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise UsageError(f"--judge {url!r}: give an http or https URL such as http://127.0.0.1:8000/v1")
