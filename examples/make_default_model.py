"""Make the shipped default model: a Llama of 110,912 parameters that knows eight string tasks and rarely says so.

    python examples/make_default_model.py [FOLDER]

writes a Hugging Face directory (about two minutes on one quiet core). Without FOLDER it replaces the shipped one.
"""

import logging
import random
import string
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from shoal.protocol.prompts import is_held_out, prompt_hash
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.export import export_hf
from shoal.trainer.model import DEFAULT_MODEL, Policy, set_threads
from shoal.trainer.tasks.strings import KINDS, StringTask
from shoal.trainer.warmstart import learn_base

SPECIAL = ["<pad>", "<eos>", "<unk>"]
SYMBOLS = list(string.ascii_lowercase + string.digits + " =+-*/?#:.,_<>!\n")
WORDS = [*KINDS, "none"]  # one token each, so that prompts are short and still readable

log = logging.getLogger("make_default_model")


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token a character, but one for each task word where it stands alone; decoding joins them again."""
    vocabulary = {token: at for at, token in enumerate([*SPECIAL, *SYMBOLS, *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(rf"\b(?:{'|'.join(WORDS)})\b|[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )


def random_policy(seed: int) -> Policy:
    """The untrained model; the width of its initial weights matters: at the usual .02 it learns half as fast."""
    torch.manual_seed(seed)
    words = tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},  # positions differ by tens, not thousands
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    model = transformers.LlamaForCausalLM(config)
    return Policy(
        model=model,
        tokenizer=words,
        device=torch.device("cpu"),
        dtype=torch.float32,
        lineage=bytes(32),
        tokenizer_hash=bytes(32),
        eos_ids=(words.eos_token_id,),
        pad_id=words.pad_token_id,
    )


def held_out_accuracy(policy: Policy, temperature: float, items: int = 64) -> dict[str, float]:
    """The share of right answers on prompts that no training draws, by task."""
    engine = make_engine(policy)
    generator = torch.Generator().manual_seed(0)
    accuracy: dict[str, float] = {}
    for kind in KINDS:
        task = StringTask(kind)
        rng = random.Random(f"accuracy/{kind}")
        drawn = (task.prompt(rng.getrandbits(31), 0) for _ in range(40 * items))
        prompts = [prompt for prompt in drawn if is_held_out(prompt_hash(prompt.text))][:items]
        groups = engine.sample([prompt.text for prompt in prompts], 4, Sampling(temperature=temperature), generator)
        scores = [task.grade(prompt, c.text) for prompt, group in zip(prompts, groups, strict=True) for c in group]
        accuracy[kind] = sum(scores) / len(scores)
    return accuracy


def main() -> None:
    """Train, say how well the result answers, and write it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    set_threads(1)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_MODEL
    policy = random_policy(seed=0)
    log.info("last training loss %.3f", learn_base(policy))
    for temperature in (1.0, 0.0):
        accuracy = held_out_accuracy(policy, temperature)
        log.info("held-out accuracy at temperature %g: mean %.2f", temperature, sum(accuracy.values()) / len(accuracy))
        log.info("  %s", "  ".join(f"{kind} {share:.2f}" for kind, share in accuracy.items()))
    log.info("written to %s", export_hf(policy, target, replace=True))


if __name__ == "__main__":
    main()
