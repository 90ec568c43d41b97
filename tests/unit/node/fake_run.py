"""A run folder as the simulator writes it, with made-up figures of a plausible shape."""

import json
import math
import random
from pathlib import Path
from typing import Any

TASKS = ("reverse", "rotate", "sort", "count", "upper", "first", "double", "last")
EVIL = "<script>alert(1)</script>\x1b[31mred\x1b[0m \u202egnp.exe\u200b<img src=x onerror=alert(2)>"
CEILING = {"swarm": 0.82, "isolated": 0.46, "isolated_total": 0.63}


def _config(nodes: int, rounds: int) -> dict[str, Any]:
    return {
        "mixing": {"local": 4, "external": 4, "group_size": 8, "mix": "whole", "peer_rows": "positive"},
        "learning": {"model": "default", "recipe": "grpo", "lr": 0.0003, "device": "cpu"},
        "swarm": {"nodes": nodes, "rounds": rounds, "tasks": "strings", "seed": 0, "attack": ["text:0.25"]},
        "links": {"round_seconds": 60.0, "delay": 0.2, "loss": 0.0, "partition": []},
        "run": {"eval_every": 5, "eval_items": 128},
    }


def _infos(nodes: int, attackers: int) -> list[dict[str, Any]]:
    return [
        {
            "node": node,
            "key": f"{(node + 1) * 0x1F3A5C77 % 2**32:08x}",
            "skills": [f"strings/{TASKS[2 * node % 8]}", TASKS[(2 * node + 1) % 8]],
            "attacker": "text" if node >= nodes - attackers else None,
        }
        for node in range(nodes)
    ]


class FakeRun:
    """Writes metrics.jsonl and timings.jsonl of a run; `rounds_done` below `rounds` leaves the last arm unfinished."""

    def __init__(self, folder: Path, nodes: int = 4, attackers: int = 1, rounds: int = 60) -> None:
        self.folder = folder
        self.nodes = nodes
        self.attackers = attackers
        self.rounds = rounds
        self.arms = ["swarm", "isolated", "isolated_total"]
        self.ceiling = dict(CEILING)
        self.random = random.Random(7)
        self.metrics: list[dict[str, Any]] = []
        self.timings: list[dict[str, Any]] = []

    def write(self, rounds_done: int | None = None, tail: str = "") -> Path:
        """Write the folder and return it; `tail` is appended as it is, e.g. half a line."""
        infos = _infos(self.nodes, self.attackers)
        config = _config(self.nodes, self.rounds)
        self.metrics.append({"event": "run", "version": "0.1.0", "config": config, "arms": self.arms, "nodes": infos})
        for arm in self.arms:
            done = rounds_done if arm == self.arms[-1] and rounds_done is not None else self.rounds
            self._arm(arm, infos, done)
            if done == self.rounds:
                self.metrics.append({"event": "end", "arm": arm, "rounds": done, "complete": True})
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, events in (("metrics.jsonl", self.metrics), ("timings.jsonl", self.timings)):
            text = "".join(json.dumps(event) + "\n" for event in events)
            (self.folder / name).write_text(text + (tail if name == "metrics.jsonl" else ""), encoding="utf-8")
        return self.folder

    def level(self, arm: str, node: int, round_: int) -> float:
        """Return the accuracy that a node has come to: an S-curve from 0.14 to the arm's ceiling."""
        progress = 1 / (1 + math.exp(-9 * (round_ / self.rounds - 0.45 - 0.03 * (node - 1.5) / self.nodes)))
        start = 1 / (1 + math.exp(9 * 0.45))
        return 0.14 + (self.ceiling[arm] - 0.14) * max(0.0, progress - start)

    def _arm(self, arm: str, infos: list[dict[str, Any]], rounds: int) -> None:
        for info in infos:
            self._eval(arm, info, 0)
        for round_ in range(1, rounds + 1):
            for info in infos:
                if self.random.random() > 0.06 * info["node"]:  # a slow node skips rounds
                    self._step(arm, info, round_)
                if round_ % 5 == 0:
                    self._eval(arm, info, round_)
                    self._attack(arm, info, round_)
            if round_ % 10 == 0:
                self._samples(arm, infos, round_)

    def _step(self, arm: str, info: dict[str, Any], round_: int) -> None:
        rnd, factor = self.random, self.nodes if arm == "isolated_total" else 1
        reward = self.level(arm, info["node"], round_) + rnd.gauss(0, 0.07)
        event = {"event": "step", "arm": arm, "node": info["node"], "round": round_, "time": 60.0 * round_}
        event |= {"version": round_, "reward": min(1.0, max(0.0, reward)), "tokens": 512 * factor, "signal": True}
        event |= {"loss": rnd.gauss(0, 0.02), "clip_fraction": 0.02, "entropy": 1.1, "grad_norm": 0.7, "note": ""}
        event |= {"own_sets": 4, "own_rows": 32, "peer_sets": 0, "peer_rows": 0, "shortfall": 0}
        event |= {"ages": {}, "lags": {}, "verdicts": {}}
        self.metrics.append(event | (self._sharing() if arm == "swarm" else {}))
        seconds = {"sample": 0.21 * factor, "grade": 0.01, "intake": 0.02, "update": 0.3, "eval": 0.05}
        timing = {"arm": arm, "node": info["node"], "round": round_, "seconds": seconds}
        self.timings.append(timing | {"tokens_per_second": 2400 + rnd.randrange(200), "rss_mb": 640 + round_ / 10})

    def _sharing(self) -> dict[str, Any]:
        rnd = self.random
        verdicts = {"screen/accepted": 20 + rnd.randrange(9), "header/stale": rnd.randrange(2)}
        verdicts |= {"gate/accepted": 30, "choice/used": 3, "pool/expired": rnd.randrange(3)}
        if rnd.random() < 0.3:
            verdicts |= {"text/control_character": 2, "duplicates/copied": 1, "quota/messages": rnd.randrange(6)}
        shared = {"peer_sets": 3, "peer_rows": 11, "shortfall": int(rnd.random() < 0.2), "verdicts": verdicts}
        ages, lags = min(4, int(rnd.expovariate(0.9))), min(8, int(rnd.expovariate(0.5)))
        return shared | {"ages": {str(ages): 3}, "lags": {str(lags): 3}}

    def _eval(self, arm: str, info: dict[str, Any], round_: int) -> None:
        gain = self.level(arm, info["node"], round_) - 0.14
        by_task = {}
        for task in TASKS:
            share = min(1.0, (0.4 if {task, f"strings/{task}"} & set(info["skills"]) else 0.05) + gain)
            by_task[f"strings/{task}"] = round(16 * share) / 16
        accuracy = sum(by_task.values()) / len(by_task)
        event = {"event": "eval", "arm": arm, "node": info["node"], "round": round_, "accuracy": accuracy}
        self.metrics.append(event | {"items": 128, "by_task": by_task})

    def _attack(self, arm: str, info: dict[str, Any], round_: int) -> None:
        shown = 0.02 + (0.08 * round_ / self.rounds if arm == "swarm" else 0.0)
        event = {"event": "attack", "arm": arm, "node": info["node"], "round": round_, "attack": "text"}
        self.metrics.append(event | {"shown": shown, "items": 64})

    def _samples(self, arm: str, infos: list[dict[str, Any]], round_: int) -> None:
        own = ("own", "reverse", f"reverse: shoal{round_}", f"{round_}laohs", 1.0, 0.7, "accept")
        good = (
            infos[1 % self.nodes]["key"],
            "sort",
            "sort: peer\nby letter",
            "e e p r\nbecause e is first",
            0.0,
            -0.4,
            "accept",
        )
        evil = (infos[-1]["key"], "rotate", "rotate 2: swarm", EVIL * 2, None, 0.0, "text/control_character")
        names = ("source", "task", "prompt", "completion", "reward", "advantage", "verdict")
        for row in (own, good, evil) if arm == "swarm" else (own,):
            event = {"event": "sample", "arm": arm, "node": 0, "round": round_} | dict(zip(names, row, strict=True))
            self.metrics.append(event | {"task": f"strings/{event['task']}"})
