"""`shoal doctor`: what a node needs, looked at one by one, with advice. It needs no node, no terminal and no network.

Exit code 0, or 1 when a check fails: a node cannot run so. Warnings leave it at 0.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from shoal.node.checks import machine, memory, network, place
from shoal.node.checks.finding import Check, Finding, Result, run, together
from shoal.node.commands.output import console, print_json
from shoal.node.control import Control, NoNode
from shoal.node.home import Home
from shoal.node.layers import load_config
from shoal.node.options import RunConfig, check
from shoal.protocol.errors import EnvironmentFault, ShoalError
from shoal.protocol.manifest import Manifest

ASK_SECONDS = 3.0  # for the running node
MANIFEST_SECONDS = 20.0  # from a file at once; from the web or a peer it may take its time
IMPORT_SECONDS = 90.0  # of torch, on a slow and busy machine
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

Json = Annotated[bool, Parameter(negative="")]


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known before anything is checked; an error stands where something could not be had."""

    home: Home
    status: dict[str, Any] | None
    silence: str  # why a node that runs here does not answer
    config: RunConfig
    config_error: ShoalError | None
    manifest: Manifest | ShoalError

    @property
    def pid(self) -> int | None:
        """The process of the running node."""
        pid = (self.status or {}).get("pid")
        return pid if isinstance(pid, int) else None


def doctor(*, home: Path | None = None, json: Json = False) -> int:
    """Check what a node needs on this machine: device, memory, disk, clock, ports, bootstraps, swarm, verifier.

    Parameters
    ----------
    home
        Folder of the node.
    json
        Print one JSON object instead of a list.
    """
    results: list[Result] = []
    for result in run(checks_of(look_around(Home.find(home)))):
        results.append(result)
        if not json:
            console().print(line(result), soft_wrap=True)
    good = all(result.finding.verdict != "fail" for result in results)
    if json:
        found = [{"name": result.name} | dataclasses.asdict(result.finding) for result in results]
        print_json({"good": good, "checks": found})
    return 0 if good else 1


def line(result: Result) -> Text:
    """Return one result, with its advice below it."""
    finding = result.finding
    text = Text.assemble((f"{finding.verdict:<5}", STYLES[finding.verdict]), f"{result.name:<14}{finding.detail}")
    if finding.advice and finding.verdict != "ok":
        text.append(f"\n{'':19}→ {finding.advice}", "dim")
    return text


def look_around(home: Home) -> Situation:
    """Ask the running node, read the configuration and the manifest; bounded in time."""
    status, silence = None, ""
    try:
        status = Control(home.socket, home.path, ASK_SECONDS).status()
    except NoNode:
        pass
    except ShoalError as error:
        silence = str(error)
    config, config_error = _config(home)
    return Situation(home, status, silence, config, config_error, _manifest(home, config))


def _config(home: Home) -> tuple[RunConfig, ShoalError | None]:
    try:
        config = load_config(home)
        check(config)
        return config, None
    except ShoalError as error:
        return RunConfig(), error  # the rest is checked as it would be by default


def _manifest(home: Home, config: RunConfig) -> Manifest | ShoalError:
    def read() -> Manifest | ShoalError:
        try:
            return place.manifest_of(config.swarm, home)
        except ShoalError as error:
            return error

    late = EnvironmentFault(f"the manifest did not come within {MANIFEST_SECONDS:.0f} s")
    broken = EnvironmentFault("the manifest could not be read: the error stands above")
    return together([read], MANIFEST_SECONDS, late, broken)[0]


def checks_of(situation: Situation) -> Iterator[Check]:
    """Yield the checks in the order in which a start would meet them."""
    home, config, status = situation.home, situation.config, situation.status
    listening = (status or {}).get("listening") or {}  # a running node may have been given other ports as flags
    health_port = listening.get("health_port", config.health.health_port)
    net, pid = config.network, situation.pid
    yield Check("python", machine.packages)
    yield Check("configuration", partial(_configuration, situation))
    yield Check("home", partial(place.home, home), late="fail")
    yield Check("node", partial(place.lock, home, status, situation.silence))
    yield Check("disk", partial(machine.disk, home.path, config.life.keep_blobs_mb), late="fail")
    if not config.bootstrap_only:
        yield Check("device", partial(machine.device, config.learning.device), IMPORT_SECONDS)
        yield Check("memory", partial(_memory, situation), IMPORT_SECONDS)
        yield Check("threads", partial(machine.threads, config.life.threads))
        yield Check("verifier", place.verifier, IMPORT_SECONDS, "fail")
    yield Check("clock", partial(machine.clock, status))
    yield Check("port", partial(network.ports, net.host, listening.get("port", net.port), pid))
    yield Check("health port", partial(network.health_port, config.health.health_host, health_port, pid))
    yield Check("reachability", partial(network.reachability, status, listening.get("port", net.port)))
    yield Check("swarm", partial(place.swarm, situation.manifest, home), IMPORT_SECONDS)
    named = () if isinstance(situation.manifest, ShoalError) else situation.manifest.bootstraps
    yield Check("bootstraps", partial(network.bootstraps, list(dict.fromkeys((*net.bootstrap, *named)))), 15.0)


def _configuration(situation: Situation) -> Finding:
    if situation.config_error is not None:
        return Finding("fail", str(situation.config_error), "the checks below are made as if nothing had been set")
    return Finding("ok", "every setting is known and within its bounds")


def _memory(situation: Situation) -> Finding:
    """A node that runs has its memory already: what is left says nothing of it."""
    used = (situation.status or {}).get("memory_mb")
    if isinstance(used, int | float):
        return Finding("ok", f"the running node has {used:,.0f} MiB")
    from shoal.trainer.model import model_folder

    learning, mixing = situation.config.learning, situation.config.mixing
    rows = mixing.sampled * mixing.group_size
    return memory.memory(memory.shape_of(model_folder(learning.model)), rows, learning.max_tokens, learning.device)
