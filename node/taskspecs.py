"""Tasks as a person names them: a set or a list, with settings from a file. No tensors are loaded for that."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.tasks.registry import TASK_SETS, TaskSpec


def task_specs(names: str, config_file: Path | None) -> tuple[TaskSpec, ...]:
    """Return the tasks of a named set, or those named one by one, with the settings of the file."""
    chosen = TASK_SETS.get(names) or tuple(TaskSpec(name.strip()) for name in names.split(",") if name.strip())
    settings = _read_settings(config_file) if config_file is not None else {}
    unused = sorted(set(settings) - {spec.name for spec in chosen})
    if unused:
        raise UsageError(f"{config_file}: settings for {', '.join(unused)}, which is not among the tasks")
    return tuple(replace(spec, config={**spec.config, **settings.get(spec.name, {})}) for spec in chosen)


def _read_settings(path: Path) -> dict[str, dict[str, Any]]:
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    for name, table in settings.items():
        if not isinstance(table, dict):
            raise UsageError(f'{path}: {name} must be a table: write ["{name}"] and its settings below')
    return settings
