"""Export: the policy as a plain Hugging Face directory that transformers loads."""

import json
import os
import shutil
from pathlib import Path

import transformers
from safetensors import SafetensorError

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.model import ORIGIN_FILE, Policy


def export_hf(policy: Policy, folder: str | Path, replace: bool = False) -> Path:
    """Write weights, config and tokenizer to `folder` and return it; the folder appears whole or not at all.

    Raises UsageError when the folder exists (with `replace`, only when it holds no model), EnvironmentFault when it
    cannot be written.
    """
    target = Path(folder)
    if target.exists() and not (replace and (target / "config.json").is_file()):
        raise UsageError(f"{target} exists already; name another folder to export to, or remove it")
    writing = target.with_name(f".{target.name}.writing-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(writing, ignore_errors=True)
        _write(policy, writing)
        _move(writing, target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(writing, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise EnvironmentFault(f"the model could not be written to {target}: {reason}") from error
    return target


def _write(policy: Policy, folder: Path) -> None:
    transformers.logging.disable_progress_bar()  # it would draw over the live table
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    origin = {"lineage": policy.lineage.hex(), "policy_version": policy.version}
    (folder / ORIGIN_FILE).write_text(json.dumps(origin) + "\n", encoding="utf-8")
    mode = (folder / "config.json").stat().st_mode
    for path in folder.iterdir():
        path.chmod(mode)  # the weights' writer makes files that only their owner can read
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _move(writing: Path, target: Path) -> None:
    """Put the new folder in place; an old one steps aside first, since a folder cannot be renamed over another."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    writing.rename(target)
    shutil.rmtree(old, ignore_errors=True)
