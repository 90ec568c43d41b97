"""What can be had from a home on which no node runs."""

from pathlib import Path

from shoal.node.home import Home
from shoal.node.layers import load_config
from shoal.protocol.errors import EnvironmentFault
from shoal.trainer.algorithm import OptimizerSpec
from shoal.trainer.checkpoint import load_latest
from shoal.trainer.export import export_hf
from shoal.trainer.model import load_policy, model_folder, take_over
from shoal.trainer.step import Trainer


def export_newest(home: Home, folder: Path) -> str:
    """Write the model of the newest whole checkpoint as a Hugging Face directory, and return its path.

    The base model is the one of the home's settings. Raises EnvironmentFault when there is no checkpoint, UsageError
    when it does not fit that model.
    """
    with home.lock():
        saved = load_latest(home.checkpoints)
    if saved is None:
        raise EnvironmentFault(f"no whole checkpoint in {home.checkpoints}: let the node run for a while first")
    learning = load_config(home).learning
    policy = load_policy(model_folder(learning.model), "cpu", template=learning.chat_template)
    if learning.lora_rank is None:
        take_over(dict(policy.model.named_parameters()), "model.", saved.tensors)
        policy.version = int(saved.state["trainer"]["version"])
    else:  # the checkpoint holds adapters alone
        Trainer(policy, optimizer=OptimizerSpec(lora_rank=learning.lora_rank)).load(
            saved.tensors, saved.state["trainer"]
        )
    return str(export_hf(policy, folder))
