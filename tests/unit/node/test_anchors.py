"""Base models of other lineages as a measure of what peers of that lineage write."""

import math

import pytest
import torch
from node_pieces import prompt

from shoal.node.anchors import Anchors
from shoal.node.reading import Text
from shoal.protocol.errors import EnvironmentFault
from shoal.trainer.model import DEFAULT_MODEL, load_policy


def test_a_base_at_hand_says_how_likely_a_text_is_and_no_other_is_asked():
    policy = load_policy(DEFAULT_MODEL)
    texts = [Text(0, prompt(), prompt().answer or "", True, 1.0), Text(0, prompt(), "zz", True, 0.0)]
    right, wrong = Anchors([str(DEFAULT_MODEL)]).evidence(policy.lineage, texts, 1.0, 64)
    assert right is not None
    assert wrong is not None
    ids = policy.encode_completion("zz", True)
    read = torch.tensor([[*policy.encode_prompt(prompt().text), *ids]])
    with torch.no_grad():
        logps = policy.model(read).logits.log_softmax(-1)[0]
    expected = [-float(logps[read.shape[1] - len(ids) - 1 + at, token]) for at, token in enumerate(ids)]
    assert wrong.surprise == pytest.approx(expected, abs=1e-4)
    assert all(math.isfinite(value) for value in right.surprise)
    assert right.vouched[:-1] == [True] * (len(right.vouched) - 1)  # all but the end mark is the answer
    assert Anchors([str(DEFAULT_MODEL)]).evidence(bytes(32), texts, 1.0, 64) == [None, None]


def test_a_directory_without_a_model_is_refused():
    with pytest.raises(EnvironmentFault, match="no model directory"):
        Anchors(["/nowhere/at/all"])
