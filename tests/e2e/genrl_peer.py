"""A peer of gensyn-genrl 0.3.0, run by test_bridge_genrl.py in an environment of its own (`make bridge-env`).

Communication, game tree, data manager, rewards and game loop are the package's; only the model is not: it answers what
it was told. Commands come as JSON lines on standard input, events go out as JSON lines on standard output.
"""

import json
import os
import random
import sys
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HIVEMIND_WORLD_SIZE="1", TOKENIZERS_PARALLELISM="false")
EVENTS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # the libraries write to standard output as they like

import datasets  # noqa: E402
import hivemind  # noqa: E402
import hivemind.utils  # noqa: E402

# The package imports this name from where hivemind had it until 1.1.11; it pins no version.
hivemind.get_dht_time = hivemind.utils.get_dht_time

from genrl.communication import Payload  # noqa: E402
from genrl.communication.hivemind.hivemind_backend import HivemindBackend, HivemindRendezvouz  # noqa: E402
from genrl.examples.code_generation.solver_data import CodeGenerationDataManager  # noqa: E402
from genrl.examples.code_generation.solver_manager import CodeGenerationGameManager  # noqa: E402
from genrl.examples.code_generation.solver_rewards import CodeGenerationRewards  # noqa: E402
from genrl.misc_utils.utils import generate_md5_hash_id  # noqa: E402
from genrl.rewards import DefaultRewardManager, RewardFnStore, RoundRewardFnStore  # noqa: E402
from genrl.state import GameState, WorldState  # noqa: E402
from genrl.trainer import TrainerModule  # noqa: E402

TOKEN_LIMIT = 64


def tell(event: str, **facts: Any) -> None:
    EVENTS.write(json.dumps({"event": event, **facts}) + "\n")


class Data(CodeGenerationDataManager):
    """The package's data manager on questions that it is given, instead of data sets from the network."""

    def __init__(self, questions: list[str], generations: int) -> None:
        self.system_prompt, self.num_generations, self.num_transplant_trees = "", generations, 1
        self.questions = questions

    def get_round_data(self) -> list[Any]:
        states = [{"question": text, "test": "", "metadata": {"dataset": "mbpp"}} for text in self.questions]
        worlds = [WorldState(environment_states=s, opponent_states=None, personal_states=None) for s in states]
        return [[generate_md5_hash_id(s["question"]), world] for s, world in zip(states, worlds, strict=True)]


class Answers(TrainerModule):
    """In the place of a model: answers as told, and trains nothing."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers = answers

    def generate(self, inputs: Any) -> list[list[str]]:
        return [self.answers[prompt[1]["content"]] for prompt in inputs["prompt"]]

    def train(self, *_: Any) -> None: ...

    def evaluate(self, *_: Any) -> None: ...

    def save(self, save_dir: str) -> None: ...

    @classmethod
    def load(cls, load_dir: str) -> "Answers":
        raise NotImplementedError(load_dir)


class Game(CodeGenerationGameManager):
    """The package's game, which tells after each round what it took over from the swarm."""

    def _hook_after_rewards_updated(self) -> None:
        super()._hook_after_rewards_updated()
        tell("round", round=self.state.round, foreign=self.foreign())

    def foreign(self) -> list[dict[str, Any]]:
        nodes = [
            (agent, node)
            for agent, trees in self.state.trees.items()
            if agent != self.rank
            for tree in trees.values()
            for node in tree[0]
        ]
        return [
            {"peer": agent, "question": node.world_state.environment_states["question"], "actions": node.actions}
            for agent, node in nodes
        ]


def play(backend: HivemindBackend, tokenizer: str, order: dict[str, Any]) -> None:
    """Play one game to its end, which is after `rounds` rounds unless a peer's payload ends it."""
    answers: dict[str, list[str]] = order["answers"]
    rounds: int = order["rounds"]
    backend.step_ = order["step"]
    rewards = RoundRewardFnStore(num_stages=1, reward_fns=[CodeGenerationRewards(tokenizer, TOKEN_LIMIT)])
    game = Game(
        max_stage=1,
        max_round=rounds,
        game_state=GameState(round=0, stage=0),
        reward_manager=DefaultRewardManager(RewardFnStore(max_rounds=rounds, reward_fn_stores=[rewards])),
        trainer=Answers(answers),
        data_manager=Data(list(answers), order["generations"]),
        communication=backend,
        run_mode="train",
    )
    game.run_game()
    tell("over", rounds=game.state.round, step=backend.step_)


def sample(order: dict[str, Any]) -> None:
    """Let the package's own code choose external rollouts again and again; tell how often the loud peer was taken."""
    data = Data([], order["generations"])
    random.seed(0)
    state = GameState(round=0, stage=0, trees={})
    swarm = {f"peer-{n}": {f"{n}": [Payload(None, ["a"] * order["generations"], None)]} for n in range(order["honest"])}
    swarm["loud"] = {f"loud-{n}": [Payload(None, ["a"] * order["generations"], None)] for n in range(order["ids"])}
    taken = [agent for _ in range(order["draws"]) for agent, _ in data.transplant_trees(state, swarm, 1)]
    tell("sampled", loud=taken.count("loud"), draws=len(taken))


def main() -> None:
    tokenizer = sys.argv[1]
    datasets.disable_progress_bars()
    HivemindRendezvouz.init(is_master=True)
    backend = HivemindBackend(timeout=20, startup_timeout=60)
    addresses = [str(address) for address in backend.dht.get_visible_maddrs(latest=True)]
    tell("ready", peer=backend.get_id(), addresses=addresses, step=backend.step_)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "sample":
            sample(order)
        else:
            play(backend, tokenizer, order)
    backend.dht.shutdown()


if __name__ == "__main__":
    main()
