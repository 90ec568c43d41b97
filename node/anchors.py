"""Public base models of other lineages: what a peer's text is compared with when the own model is no measure of it."""

from collections.abc import Sequence

from shoal.node.reading import Text, ask, read
from shoal.trainer.evidence import RowEvidence
from shoal.trainer.model import load_policy
from shoal.trainer.step import Trainer


class Anchors:
    """Base models that this node has at hand, by lineage. They are read and never trained.

    Raises EnvironmentFault for a directory that holds no usable model.
    """

    def __init__(self, folders: Sequence[str] = ()) -> None:
        readers = [Trainer(load_policy(folder)) for folder in folders]  # a trainer reads; its optimizer stays empty
        self._readers = {reader.policy.lineage: reader for reader in readers}

    def evidence(
        self, lineage: bytes, texts: Sequence[Text], temperature: float, longest: int
    ) -> list[RowEvidence | None]:
        """Return what the base model of a lineage says of each text; None where it is not there or cannot read it.

        Nor does it read what has more than `longest` tokens: its tokenizer may make many more of a text than the own.
        """
        reader = self._readers.get(lineage)
        if reader is None:
            return [None] * len(texts)
        readings = read(reader.policy, texts, temperature, longest)
        ask(reader, [reading for reading in readings if not reading.unread])
        return [reading.evidence for reading in readings]


NO_ANCHORS = Anchors()
