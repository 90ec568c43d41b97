"""The settings written out for people: the config.toml of a new home, and docs/configuration.md.

python -m shoal.node.settings_page > docs/configuration.md
"""

import sys
import textwrap

from shoal.node.declared import Option, kind_text, options, toml_text

LEFT_OUT = "…"  # stands for a default that config.toml cannot express: nothing at all

_TEMPLATE_HEAD = """\
# Settings of this node. A line without # overrides the default; the environment and flags override both.
# Paths count from the folder of this file.
"""

_PAGE_HEAD = """\
# Configuration

`shoal run` takes each setting from the highest layer that names it: a flag, the environment, `config.toml` in the home,
the default. `shoal config show --origin` says for every value which one that was, `shoal config check` whether all of
them go together. `shoal init` writes a `config.toml` in which everything stands at its default, commented out. A name
that is not known is an error in every layer, and the message tells the nearest one that is.

| | `config.toml` | environment | flag |
|---|---|---|---|
| names | `[mixing]` `local = 4` | `SHOAL_MIXING_LOCAL=4` | `--local 4` |
| true or false | `true`, `false` | `true`, `false`, `yes`, `no`, `on`, `off`, `1`, `0` | `--relays`, `--no-relays` |
| lists | `["a", "b"]` | separated by commas | repeated: `--bootstrap a --bootstrap b` |
| relative paths | from the folder of the file | from the working directory | from the working directory |
| left out | a line with `#`, or none | not set, or empty | not given |

Four more variables are no settings: `SHOAL_HOME` names the home (as `--home` does; else it is
`$XDG_DATA_HOME/shoal`, or `~/.local/share/shoal`), `SHOAL_PASSPHRASE` opens backups of `shoal keys`, `SHOAL_JUDGE_KEY`
is the key for a judge on a server, and `SHOAL_STRICT_SKIPS` belongs to the test suite. What Kubernetes and Docker set
for a service named shoal, such as `SHOAL_SERVICE_HOST`, is passed over.

The rest of this page is made by `python -m shoal.node.settings_page > docs/configuration.md`; a test fails when it is
stale.
"""


def template() -> str:
    """Return a config.toml in which every setting stands at its default, commented out."""
    parts = [_TEMPLATE_HEAD]
    for group, settings in by_group().items():
        parts += [f"\n[{group}]\n"] if group else []
        parts += ["\n" + "\n".join(_commented(option)) + "\n" for option in settings]
    return "".join(parts)


def _commented(option: Option) -> list[str]:
    takes = f"{option.doc} Takes {kind_text(option)}."
    default = toml_text(option.default) or LEFT_OUT
    return [*textwrap.wrap(takes, 110, initial_indent="# ", subsequent_indent="# "), f"# {option.key} = {default}"]


def page() -> str:
    """Return docs/configuration.md: every setting with its names and its default."""
    parts = [_PAGE_HEAD]
    for group, settings in by_group().items():
        title = f"`[{group}]`" if group else "Top level"
        parts.append(f"\n## {title}\n\n| config.toml | environment | flag | default | |\n|---|---|---|---|---|\n")
        parts += [_row(option) for option in settings]
    return "".join(parts)


def _row(option: Option) -> str:
    default = f"`{toml_text(option.default)}`" if option.default is not None else "–"
    words = f"{option.doc} Takes {kind_text(option)}.".replace("|", "\\|")
    return f"| `{option.key}` | `{option.variable}` | `{option.flag}` | {default} | {words} |\n"


def by_group() -> dict[str, list[Option]]:
    """Return the settings by their group, both in the order of declaration."""
    groups: dict[str, list[Option]] = {}
    for option in options():
        groups.setdefault(option.group, []).append(option)
    return groups


if __name__ == "__main__":
    sys.stdout.write(page())
