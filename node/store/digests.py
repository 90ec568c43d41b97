"""Hashes of what an update was made of: equal hashes, equal inputs."""

import hashlib
import math
import struct
from collections.abc import Sequence

import numpy as np

from shoal.trainer.batch import Row

_INPUTS_DOMAIN = b"shoal/inputs/1"
_ADVANTAGES_DOMAIN = b"shoal/advantages/1"
_SELECTION_DOMAIN = b"shoal/selection/1"
_ROW = struct.Struct(">qddd??qqq")  # uid, reward, weight, temperature, baseline, train, policy version, age, lag


def inputs_hash(rows: Sequence[Row]) -> bytes:
    """SHA-256 over all that training reads of the rows, in their order.

    Domain tag, number of rows (uint32), then for each row the fixed fields above and five columns, each behind its
    length in bytes (uint32): source, operator (UTF-8), prompt ids and completion ids (uint32), behaviour log-probs
    (float64; a length of 2^32 - 1 stands for none). All numbers are big-endian; an unscorable reward is the quiet NaN.
    """
    digest = hashlib.sha256(_INPUTS_DOMAIN + struct.pack(">I", len(rows)))
    for row in rows:
        reward = math.nan if math.isnan(row.reward) else row.reward
        numbers = (row.uid, reward, row.weight, row.temperature, row.baseline, row.train)
        digest.update(_ROW.pack(*numbers, row.policy_version, row.age, row.lag))
        for column in (row.source, row.operator.encode("utf-8"), _ids(row.prompt_ids), _ids(row.completion_ids)):
            digest.update(_sized(column))
        logps = row.behaviour_logps
        digest.update(struct.pack(">I", 0xFFFFFFFF) if logps is None else _sized(_floats(logps)))
    return digest.digest()


def advantages_hash(advantages: Sequence[float]) -> bytes:
    """SHA-256 over one advantage a row (domain tag, then float64, big-endian)."""
    return hashlib.sha256(_ADVANTAGES_DOMAIN + _floats(advantages)).digest()


def selection_hash(trained: Sequence[bool], weights: Sequence[float]) -> bytes:
    """SHA-256 over which rows train (one byte each) and how strongly (float64, big-endian)."""
    return hashlib.sha256(_SELECTION_DOMAIN + bytes(trained) + _floats(weights)).digest()


def _sized(column: bytes) -> bytes:
    return struct.pack(">I", len(column)) + column


def _ids(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, dtype=">u4").tobytes()


def _floats(values: Sequence[float]) -> bytes:
    return np.asarray(values, dtype=">f8").tobytes()
