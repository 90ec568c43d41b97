"""The policy: a causal language model with its tokenizer, read from a plain Hugging Face directory.

Nothing is fetched and no code of a model directory is run: local files, safetensors weights, no remote code.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from shoal.protocol.errors import EnvironmentFault, UsageError

ORIGIN_FILE = "shoal.json"  # beside the weights of an exported model: where it comes from
DEFAULT_MODEL = Path(__file__).parent / "default_model"
"""The shipped .1 M parameter model of the string tasks; `examples/make_default_model.py` makes it."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Keys that the library rewrites on every save; they say nothing about what the model computes.
_VOLATILE_CONFIG = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures", "use_cache")
_VOLATILE_TOKENIZER = ("padding", "truncation")


Place = tuple[int, int]


@dataclass(eq=False)
class Policy:
    """A model, its tokenizer, and the two hashes by which peers tell whether they can share token ids.

    `version` counts completed updates. `lineage` is the 32-byte hash of the base checkpoint and tokenizer as they
    were loaded; updates do not change it.
    """

    model: nn.Module
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    lineage: bytes
    tokenizer_hash: bytes
    eos_ids: tuple[int, ...]
    pad_id: int
    version: int = 0
    has_template: bool = field(default=False)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids the model reads before it answers `text`, through the chat template where there is one."""
        if self.has_template:
            turn = [{"role": "user", "content": text}]
            return self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        return self.tokenizer.encode(text, split_special_tokens=True)

    def encode_completion(self, text: str, finished: bool) -> list[int]:
        """Return the ids of a completion's text, with the end mark re-added when the completion had finished.

        Text never becomes a special token, whatever it says: a peer cannot write an end mark or a chat turn.
        """
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return [*ids, self.eos_ids[0]] if finished else ids

    def completion_offsets(self, text: str, finished: bool) -> list[Place]:
        """Return where in `text` each id of `encode_completion` stands; see `read_completions`."""
        return self.read_completions([(text, finished)])[0][1]

    def read_completions(self, completions: Sequence[tuple[str, bool]]) -> list[tuple[list[int], list[Place]]]:
        """Return for each (text, finished) the ids of `encode_completion`, and where in the text each of them stands.

        A place is (start, end) in characters. White space before a token's own text is left out; the end mark stands
        behind the text. A tokenizer that knows no places gives (0, 0) for all ids.
        """
        if not completions:
            return []
        if not self.tokenizer.is_fast:
            encoded = [self.encode_completion(text, finished) for text, finished in completions]
            return [(ids, [(0, 0)] * len(ids)) for ids in encoded]
        options = {"add_special_tokens": False, "split_special_tokens": True, "return_offsets_mapping": True}
        found = self.tokenizer([text for text, _ in completions], **options)
        read: list[tuple[list[int], list[Place]]] = []
        for (text, finished), ids, spans in zip(completions, found["input_ids"], found["offset_mapping"], strict=True):
            places = [_without_space(text, *span) for span in spans]
            end = ([self.eos_ids[0]], [(len(text), len(text))]) if finished else ([], [])
            read.append((ids + end[0], places + end[1]))
        return read

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of completion ids without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """Move the start past white space; a token of white space alone stays where it is."""
    stripped = text[start:end].lstrip()
    return (end - len(stripped), end) if stripped else (start, end)


def set_threads(count: int) -> None:
    """Bound the threads of one tensor operation; left to the library, processes on one machine stall each other."""
    if count < 1:
        raise UsageError(f"threads must be at least 1, not {count}")
    torch.set_num_threads(count)


def load_policy(path: str | Path, device: str = "cpu", dtype: str = "float32", template: bool = True) -> Policy:
    """Load a policy from a Hugging Face directory (config, safetensors weights, tokenizer).

    Without `template` prompts are read as they are, even where the tokenizer has a chat template: worked examples
    in a prompt address a text model, and an instruct model answers them better as such.

    Raises EnvironmentFault when the directory or one of its parts is missing or damaged, UsageError for a dtype or
    device that does not exist here.
    """
    folder = Path(path)
    torch_dtype, torch_device = _dtype(dtype), _device(device)
    _require(folder)
    weights = _weights_digest(folder)  # before the library reads them: it says better what is damaged
    tokenizer = _load_tokenizer(folder)
    model = _load_model(folder, torch_dtype).to(torch_device)
    tokenizer_hash = _tokenizer_digest(folder, tokenizer)
    eos_ids = _eos_ids(folder, model, tokenizer)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos_ids[0]
    return Policy(
        model=model,
        tokenizer=tokenizer,
        device=torch_device,
        dtype=torch_dtype,
        lineage=_stated_lineage(folder) or _own_lineage(folder, weights, tokenizer_hash),
        tokenizer_hash=tokenizer_hash,
        eos_ids=eos_ids,
        pad_id=pad_id,
        has_template=template and bool(tokenizer.chat_template),
    )


def model_folder(name: str) -> Path:
    """Return the folder of a model: `default` is the one that comes with the package."""
    return DEFAULT_MODEL if name == "default" else Path(name).absolute()


@torch.no_grad()
def take_over(targets: Mapping[str, nn.Parameter], prefix: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set parameters to the tensors that a checkpoint has under `prefix` and their names.

    Raises UsageError when it belongs to another model.
    """
    for name, target in targets.items():
        source = tensors.get(prefix + name)
        if source is None or source.shape != target.shape:
            raise UsageError(f"the checkpoint does not fit the model: {prefix + name} is missing or of another shape")
        target.copy_(source)


def weights_hash(model: nn.Module) -> bytes:
    """Return the SHA-256 of a model's present parameters: names, types, shapes and bytes in order of name."""
    digest = hashlib.sha256(b"shoal/weights/1")
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}")
    return DTYPES[name]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.Generator(device)  # what samples must exist there too
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch asserts where CUDA is not built in
        raise UsageError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def _require(folder: Path) -> None:
    """Raise EnvironmentFault with what is missing, before the library guesses at a download."""
    if not folder.is_dir():
        raise EnvironmentFault(f"no model directory at {folder}; give the path of a Hugging Face directory")
    if not (folder / "config.json").is_file():
        raise EnvironmentFault(f"{folder} has no config.json: it is not a Hugging Face model directory")
    if not _weight_files(folder):
        raise EnvironmentFault(f"{folder} has no .safetensors weights; other formats are refused, convert them first")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise EnvironmentFault(f"{folder} has no tokenizer (tokenizer.json); copy it beside the weights")


def _weight_files(folder: Path) -> list[Path]:
    single = folder / "model.safetensors"
    return [single] if single.is_file() else sorted(folder.glob("model-*.safetensors"))


def _weights_digest(folder: Path) -> bytes:
    """Hash tensors by name, so that neither sharding nor the order within a file matters."""
    digests: list[tuple[str, bytes]] = []
    for path in _weight_files(folder):
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                if size > 100_000_000:  # the format's own limit; a larger value is not a header
                    raise ValueError("header too large")
                header = json.loads(file.read(size))
                for name, spec in header.items():
                    if name != "__metadata__":
                        digests.append((name, _tensor_digest(file, 8 + size, spec)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EnvironmentFault(f"{path} is not a readable safetensors file: {error}") from error
    digest = hashlib.sha256()
    for name, part in sorted(digests):
        digest.update(hashlib.sha256(name.encode()).digest() + part)
    return digest.digest()


def _tensor_digest(file: Any, base: int, spec: dict[str, Any]) -> bytes:
    begin, end = spec["data_offsets"]
    file.seek(base + begin)
    data = file.read(end - begin)
    if len(data) != end - begin:
        raise ValueError("it ends early")
    return hashlib.sha256(f"{spec['dtype']}|{spec['shape']}|".encode() + data).digest()


def _own_lineage(folder: Path, weights: bytes, tokenizer_hash: bytes) -> bytes:
    """Return the lineage that begins with these weights."""
    return hashlib.sha256(b"shoal/lineage/1" + _config_digest(folder) + weights + tokenizer_hash).digest()


def _stated_lineage(folder: Path) -> bytes | None:
    """Return the lineage that an exported model belongs to: later tuning does not change it. None for other models."""
    path = folder / ORIGIN_FILE
    if not path.is_file():
        return None
    stated = _read_json(path).get("lineage")
    try:
        lineage = bytes.fromhex(stated)
    except (TypeError, ValueError):
        lineage = b""
    if len(lineage) != 32:
        raise EnvironmentFault(f"{path} names no lineage of 64 hex characters: remove the file to begin a new one")
    return lineage


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _config_digest(folder: Path) -> bytes:
    config = _read_json(folder / "config.json")
    return hashlib.sha256(_canonical({k: v for k, v in config.items() if k not in _VOLATILE_CONFIG})).digest()


def _tokenizer_digest(folder: Path, tokenizer: Any) -> bytes:
    path = folder / "tokenizer.json"
    data = _read_json(path) if path.is_file() else json.loads(tokenizer.backend_tokenizer.to_str())
    return hashlib.sha256(_canonical({k: v for k, v in data.items() if k not in _VOLATILE_TOKENIZER})).digest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise EnvironmentFault(f"{path} cannot be read: it must hold one JSON object")
    return data


def _load_tokenizer(folder: Path) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        raise EnvironmentFault(f"{folder} has no usable tokenizer: {_first_line(error)}") from error


def _load_model(folder: Path, dtype: torch.dtype) -> nn.Module:
    transformers.logging.disable_progress_bar()  # it would draw over the live table
    transformers.logging.set_verbosity_error()
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError, SafetensorError) as error:
        raise EnvironmentFault(f"{folder} cannot be loaded: {_first_line(error)}") from error
    absent = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if absent:  # the library would fill these with random numbers and only warn
        raise EnvironmentFault(f"{folder} lacks weights that its config asks for: {', '.join(absent[:3])}")
    return model


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _eos_ids(folder: Path, model: nn.Module, tokenizer: Any) -> tuple[int, ...]:
    """Return every id that ends a completion, the tokenizer's own first."""
    found = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    for source in (getattr(model, "generation_config", None), model.config):
        ids = getattr(source, "eos_token_id", None)
        found += [ids] if isinstance(ids, int) else list(ids or ())
    if not found:
        raise EnvironmentFault(f"{folder} names no end-of-text token; set eos_token in tokenizer_config.json")
    return tuple(dict.fromkeys(found))
