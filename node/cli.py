"""The command line: all commands of `shoal`, and how they end.

Exit codes: 0 done · 1 failed · 2 wrong usage or configuration · 3 the environment refuses (disk, permission,
missing model) · 130 interrupted. Errors are one line on standard error and say what to do. Heavy modules are imported
inside the commands, so that help and errors in options come at once.
"""

import errno
import sys
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import App, Group, Parameter
from rich.console import Console

from shoal.defenses.text import safe
from shoal.node.config import CanaryOptions, Learning, Links, Mixing, RunOptions, SimulateConfig, SwarmOptions, check
from shoal.node.defense_options import DefenseOptions
from shoal.protocol.errors import EnvironmentFault, ShoalError, UsageError

INTERRUPTED = 130  # 128 + SIGINT, as shells report it

_FLAT = Parameter(name="*", negative="", consume_multiple=True)

app = App(
    name="shoal",
    help="A decentralized swarm-training node: group-relative RL that learns from what its peers sampled.",
    version_flags=[],
    result_action="return_value",
)

LIVE = Group("A node in a swarm", sort_key=1)
LOOK = Group("Looking at a node and steering it", sort_key=2)
TRY = Group("Trying things out", sort_key=3)

# Named, not imported: a command's modules are loaded when it is called.
_COMMANDS = (
    (LIVE, "init:init", "Make the home of a node: keys and settings. It asks nothing."),
    (LIVE, "swarm:app", "Found a swarm, look at one, join it, invite to it, revise it."),
    (LIVE, "run:app", "Run this machine's node in a swarm, until it is told to stop."),
    (LIVE, "doctor:doctor", "Check whether this machine can run a node, with advice."),
    (LIVE, "keys:app", "The identity of a node: show, back up, restore, rotate."),
    (LIVE, "config:app", "Show and check the settings of a node."),
    (LIVE, "service:service", "Print a systemd unit for the node."),
    (LOOK, "status:status", "Show the running node on one screen."),
    (LOOK, "peers:peers", "Show the peers of the running node."),
    (LOOK, "steer:pause", "Let the running node take no further step."),
    (LOOK, "steer:resume", "Let a paused node go on."),
    (LOOK, "steer:export", "Write the model as a Hugging Face directory."),
    (LOOK, "replay:replay", "Make past updates again from the ledger, and compare."),
    (TRY, "bench:bench", "Measure this machine with a model, and suggest settings."),
    (TRY, "redteam:redteam", "Attack simulated swarms, with defences and without, and report how it went."),
    (TRY, "completion:completion", "Print the completion script of a shell."),
)
for _group, _place, _help in _COMMANDS:
    _module, _, _attribute = _place.partition(":")
    _name = _module if _attribute == "app" else _attribute
    app.command(f"shoal.node.commands.{_place}", name=_name, group=_group, help=_help)


@app.command(group=TRY)
def simulate(
    *,
    swarm: Annotated[SwarmOptions, _FLAT, Parameter(group=Group("Swarm", sort_key=1))] = SwarmOptions(),
    mixing: Annotated[Mixing, _FLAT, Parameter(group=Group("Mixing", sort_key=2))] = Mixing(),
    learning: Annotated[Learning, _FLAT, Parameter(group=Group("Learning", sort_key=3))] = Learning(),
    links: Annotated[Links, _FLAT, Parameter(group=Group("Network and time", sort_key=4))] = Links(),
    run: Annotated[RunOptions, _FLAT, Parameter(group=Group("Run", sort_key=5))] = RunOptions(),
    canary: Annotated[CanaryOptions, _FLAT, Parameter(group=Group("Canary", sort_key=6))] = CanaryOptions(),
    defenses: Annotated[DefenseOptions, _FLAT, Parameter(group=Group("Judge", sort_key=7))] = DefenseOptions(),
) -> int:
    """Run a whole swarm in this process, beside the same nodes isolated, and write a report.

    Ctrl-C ends with a report of what there is; --resume goes on from the last checkpoint.
    """
    config = SimulateConfig(mixing, learning, swarm, links, run, canary, defenses)
    check(config)
    from shoal.node.simulate import run_simulation

    return 0 if run_simulation(config) else INTERRUPTED


@app.command(name="eval", group=TRY)
def evaluate(
    model: str,
    /,
    *,
    tasks: str = "strings",
    task_config: Path | None = None,
    items: int = 200,
    temperature: float = 0.0,
    chat_template: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure a checkpoint on held-out prompts, with 95 % intervals.

    Parameters
    ----------
    model
        `default`, or a directory that transformers can load.
    tasks
        A named set, or task names separated by commas.
    task_config
        TOML file with one table of settings for each task name.
    items
        Held-out prompts, spread evenly over the tasks.
    temperature
        Sampling temperature; 0 is greedy.
    chat_template
        Prompts go through the chat template where the tokenizer has one.
    json
        Print one JSON object instead of a table.
    """
    from shoal.node.plan import task_specs
    from shoal.node.try_model import NamedModel, evaluate_model

    specs = task_specs(tasks, task_config)
    evaluate_model(NamedModel(model, chat_template), specs, (items, temperature), as_json=json)
    return 0


@app.command(group=TRY)
def sample(
    model: str,
    prompt: str,
    /,
    *,
    count: int = 4,
    temperature: float = 1.0,
    max_tokens: int = 64,
    seed: int = 0,
    chat_template: bool = True,
) -> int:
    """Try a model: sample completions of a prompt.

    Parameters
    ----------
    model
        `default`, or a directory that transformers can load.
    prompt
        What the model reads, e.g. "reverse abc=".
    count
        Number of completions.
    temperature
        Sampling temperature; 0 is greedy.
    max_tokens
        Longest completion in tokens.
    seed
        Seed of the sampler.
    chat_template
        The prompt goes through the chat template where the tokenizer has one.
    """
    from shoal.node.try_model import NamedModel, sample_model

    sample_model(NamedModel(model, chat_template), prompt, (count, seed), (temperature, max_tokens))
    return 0


@app.command(group=TRY)
def tasks(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List every task and named set.

    Parameters
    ----------
    json
        Print one JSON object instead of a list.
    """
    from shoal.node.try_model import list_tasks

    list_tasks(as_json=json)
    return 0


@app.command(group=TRY)
def report(run: Path, /) -> int:
    """Write the report of a run again from its records.

    Parameters
    ----------
    run
        The folder of the run.
    """
    from shoal.node.report.page import write_report

    print_line(f"report: {write_report(run)}")
    return 0


@app.command(group=TRY)
def version() -> int:
    """Print the version."""
    from importlib.metadata import version as installed

    print_line(f"shoal {installed('shoal-node')}")
    return 0


def print_line(text: str) -> None:
    """Print one plain line to standard output."""
    sys.stdout.write(text + "\n")


def fail(message: str, code: int) -> int:
    """Print one line to standard error and return the exit code. A manifest or a peer may be quoted in it."""
    Console(stderr=True, soft_wrap=True).print(f"shoal: {safe(message, 4000)}", markup=False, highlight=False)
    return code


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        code = app(exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        code = fail(f"{' '.join(str(error).split())} (see --help)", UsageError.exit_code)
    except ShoalError as error:
        code = fail(str(error), error.exit_code)
    except BrokenPipeError:
        code = 1  # whoever read our output has gone
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        place = f" {error.filename}" if error.filename else ""
        hint = "free some space, then go on with --resume" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        code = fail(f"cannot write{place}: {error.strerror}. {hint}".rstrip(". "), EnvironmentFault.exit_code)
    except KeyboardInterrupt:
        code = fail("interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)
