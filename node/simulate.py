"""`shoal simulate`: a whole swarm in one process, beside the same nodes isolated.

Each arm is the same set of nodes from the same weights. The swarm shares; the isolated nodes make updates of the same
size from their own rollouts alone; the third arm does so at the swarm's total sampling cost for every single node.
"""

import hashlib
import logging
import resource
import signal
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from rich.console import Console

from shoal.defenses.attacks import ATTACKS, Attack
from shoal.node import paths
from shoal.node.assemble import Commons, simulated_identity, simulated_manifest
from shoal.node.config import Arm, SimulateConfig
from shoal.node.events import Event, RoundResult, alarm_events, sample_events, step_event
from shoal.node.heldout import Answers, answer, eval_event, held_out_prompts
from shoal.node.plan import Plan, make_plan, roles_of
from shoal.node.report.page import write_report
from shoal.node.report.summary import lines, summarise
from shoal.node.runfolder import RunFolder, find_run, new_run
from shoal.node.swarm import Swarm, VirtualNow
from shoal.node.table import LiveTable
from shoal.node.wiring import sampling_of
from shoal.protocol.errors import EnvironmentFault
from shoal.protocol.identity import short
from shoal.trainer.checkpoint import Saved, load_latest, save
from shoal.trainer.export import export_hf
from shoal.trainer.model import Policy, load_policy, set_threads
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader
from shoal.trainer.warmstart import skills_of, start_skills

log = logging.getLogger(__name__)
Show = Callable[[Event], None]
KEPT_CHECKPOINTS = 2  # the latest, and the one before in case that a disk error spoils it


class Simulation:
    """One run: its arms one after the other, each recorded, evaluated and checkpointed."""

    def __init__(
        self, config: SimulateConfig, folder: RunFolder, grader: Grader, held_out: Sequence[Prompt], show: Show
    ) -> None:
        self.config = config
        self.folder = folder
        self.show = show
        self.plan: Plan = make_plan(config)
        self.looked_for = self.plan.attacks  # whose behaviour is looked for in answers; a control names more
        self.now = VirtualNow()
        registry: TaskRegistry = grader.registry
        slots = max(role.prompts for arm in config.run.arms for role in roles_of(arm, config, self.plan.attackers))
        manifest = simulated_manifest(config, registry, slots * config.links.passes)
        self.commons = Commons(config, manifest, registry, grader, self.now)
        self.held_out = held_out
        self.arm: Arm = config.run.arms[0]
        self.swarm: Swarm | None = None
        self.due: dict[int, int] = {}
        self.first_answers: dict[int, Answers] = {}

    def run(self) -> None:
        """Run all arms, or those that are left after the latest checkpoint."""
        set_threads(self.config.run.threads)
        saved = load_latest(self.folder.checkpoints)
        if saved is None and self.folder.had_checkpoints:
            place = self.folder.checkpoints
            raise EnvironmentFault(f"all checkpoints in {place} are damaged: begin again with --force")
        for damaged in saved.skipped if saved else ():
            log.warning("a damaged checkpoint was passed over: %s", damaged)
        if saved is None:
            self.folder.rewind([0, 0])
            self._record(self._opening())
        else:
            self.folder.rewind(saved.state["positions"])
        begun = saved.state["arm"] if saved else self.config.run.arms[0]
        arms = self.config.run.arms
        for arm in arms[arms.index(begun) :]:
            self._run_arm(arm, saved if arm == begun else None)

    def _opening(self) -> Event:
        nodes = [
            {
                "node": number,
                "key": short(simulated_identity(self.config.swarm.seed, number).key),
                "skills": list(skills_of(number)) if self.plan.skills else [],
                "attacker": self.plan.attackers.get(number),
            }
            for number in range(self.config.swarm.nodes)
        ]
        arms = list(self.config.run.arms)
        settings = {"version": version("shoal-node"), "config": self.config.plain()}
        return {"event": "run"} | settings | {"arms": arms, "nodes": nodes}

    def _run_arm(self, arm: Arm, saved: Saved | None) -> None:
        """Run one arm in stretches of `checkpoint_every` rounds, from its beginning or from a checkpoint."""
        self.arm = arm
        self.now.rested = 0.0
        roles = roles_of(arm, self.config, self.plan.attackers)
        self.swarm = None  # the models of the arm before are released first
        self.swarm = Swarm(self.commons, self.now, [(role, self._policy(role.number)) for role in roles], self._report)
        honest = [role.number for role in roles if role.attack is None]
        if saved is None:
            self.due = dict.fromkeys(honest, 0)
            for number in honest:
                self._evaluate(number, 0)
            done = 0
        else:
            self.swarm.restore(saved.tensors, saved.state["swarm"])
            self.due = {int(number): round for number, round in saved.state["due"].items()}
            done = saved.state["done"]
        rounds, stretch = self.config.swarm.rounds, self.config.run.checkpoint_every
        while done < rounds:
            done = min(done + stretch, rounds)
            self.swarm.run(done)
            self._save(done)
        self._finish(honest)

    def _finish(self, honest: list[int]) -> None:
        """Evaluate at the end, keep the models, close the arm."""
        assert self.swarm is not None
        for number in honest:
            self._evaluate(number, self.config.swarm.rounds)
            policy = self.swarm.nodes[number].organs.trainer.policy
            export_hf(policy, self.folder.path / "models" / self.arm / f"node-{number}", replace=True)
        self._record({"event": "end", "rounds": self.config.swarm.rounds, "complete": True})

    def stopped(self) -> None:
        """Record that the run was interrupted; going on drops this line again."""
        self._record({"event": "end", "rounds": self.config.swarm.rounds, "complete": False})

    def _save(self, done: int) -> None:
        assert self.swarm is not None
        tensors, swarm = self.swarm.state()
        due = {str(number): round for number, round in self.due.items()}
        state = {"arm": self.arm, "done": done, "due": due, "positions": self.folder.positions(), "swarm": swarm}
        self.folder.sync()  # a checkpoint never points beyond what is on the disk
        step = self.config.run.arms.index(self.arm) * self.config.swarm.rounds + done
        save(self.folder.checkpoints, step, tensors, state, keep=KEPT_CHECKPOINTS)

    def _policy(self, number: int) -> Policy:
        """Return the policy that a node begins with, equal in every arm."""
        learning = self.config.learning
        policy = load_policy(self.plan.model, learning.device, template=learning.chat_template)
        if self.plan.skills:
            swarm = self.config.swarm
            rhos = (swarm.own_skill, swarm.other_skill)
            start_skills(policy, number, swarm.seed, paths.cache_dir() / "starts", rhos)
        return policy

    def _report(self, number: int, result: RoundResult, time: float) -> None:
        """Record one pass of a node; evaluate it when that is due."""
        assert self.swarm is not None
        for event in [*alarm_events(result), step_event(result, time)]:
            self._record(event, number)
        if number in self.due and self.arm == "swarm":
            self._record(self.swarm.tallies[number].take(result.round, result.own), number)
        tokens = sum(len(completion.ids) for own in result.own for completion in own.completions)
        sampling = result.watch.seconds.get("sample", 0.0)
        screening = self.swarm.nodes[number].organs.gatherer.watch.take()
        timing = {
            "round": result.round,
            "seconds": {name: round(value, 6) for name, value in (result.watch.seconds | screening).items()},
            "tokens_per_second": round(tokens / sampling, 1) if sampling else None,
            "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }
        self._time(timing, number)
        if number in self.due and result.round >= self.due[number]:
            self.due[number] = (result.round // self.config.run.eval_every + 1) * self.config.run.eval_every
            for event in sample_events(result):
                self._record(event, number)
            if result.round > 0:
                self._evaluate(number, result.round)

    def _evaluate(self, number: int, round: int) -> None:
        """Record a node's accuracy on held-out prompts, and how often its answers show what attackers plant."""
        assert self.swarm is not None
        organs = self.swarm.nodes[number].organs
        digest = hashlib.sha256(f"shoal/eval/{self.config.swarm.seed}/{number}/{round}".encode()).digest()
        sampling = sampling_of(self.config.learning, self.commons.registry)
        answers = self.first_answers.get(number) if round == 0 else None
        if answers is None:
            answers = answer(organs.engine, organs.grader, self.held_out, sampling, int.from_bytes(digest[:7]))
        if round == 0:
            self.first_answers[number] = answers  # the same in every arm: all begin from the same weights
        self._record(eval_event(round, answers), number)
        for name in self.looked_for:
            if ATTACKS[name].shown is Attack.shown:
                continue  # it plants nothing in answers
            attack = ATTACKS[name]()
            asked = answers.among(attack.triggered)
            shown = asked.share(attack.shown)
            event = {"event": "attack", "round": round, "attack": name, "shown": shown, "items": len(asked.texts)}
            self._record(event, number)

    def _record(self, event: Event, number: int | None = None) -> None:
        placed = self._placed(event, number)
        self.folder.metrics.write(placed)
        self.show(placed)

    def _time(self, timing: Event, number: int) -> None:
        placed = self._placed({"event": "timing"} | timing, number)
        self.folder.timings.write(placed)
        self.show(placed)

    def _placed(self, event: Event, number: int | None) -> Event:
        """Return the event with its arm and node next to its name."""
        if event["event"] == "run":
            return event
        place: dict[str, Any] = {"event": event["event"], "arm": self.arm}
        return place | ({} if number is None else {"node": number}) | event


def run_simulation(config: SimulateConfig) -> bool:
    """Run or resume a simulation with a live table, and write its report; return False when it was interrupted."""
    folder = None
    if config.run.resume:
        folder, config = find_run(config)
    # Names, files, model and device are checked before anything is written.
    plan = make_plan(config)
    grader = Grader(TaskRegistry(plan.specs))
    load_policy(plan.model, config.learning.device)
    held_out = held_out_prompts(grader.registry, config.run.eval_items)
    folder = folder or new_run(config)
    finished = True
    if plan.skills:
        say(f"preparing {config.swarm.nodes} nodes (their starting weights are kept in {paths.cache_dir()})")
    with grader, LiveTable() as table:
        simulation = Simulation(config, folder, grader, held_out, table.update)
        try:
            simulation.run()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would only spoil the report
            finished = False
            simulation.stopped()
        finally:
            folder.close()
    said = [*lines(summarise(folder.path)), f"report: {write_report(folder.path)}"]
    if not finished:
        place = "goes on from the last checkpoint" if folder.had_checkpoints else "begins again: nothing was saved yet"
        said.append(f"interrupted: `shoal simulate --resume --out {folder.path}` {place}")
    for line in said:
        say(line)
    return finished


def say(line: str) -> None:
    """Print one line to standard output as it is."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)
