"""From a finished pass to the ledger and the blob store: what the daemon calls after each pass, in a thread."""

from dataclasses import dataclass

from shoal.node.events import RoundResult
from shoal.node.loop import Node
from shoal.node.store.blobs import BlobStore
from shoal.node.store.facts import own_records, pass_record, peer_records
from shoal.node.store.ledger import PassFacts, Store
from shoal.node.store.samples import pack_samples
from shoal.node.store.settings import settings_of
from shoal.node.witness import PassNotes


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records the passes of one node.

    `model` (`default`, or an absolute path) and `template` are what its policy was loaded with.
    """

    store: Store
    blobs: BlobStore
    node: Node
    model: str
    template: bool = True

    def record_pass(self, result: RoundResult, notes: PassNotes) -> int:
        """Write down one pass with what was noted of it, and return its number in the ledger.

        Blobs first, then the rows: a process that dies in between leaves blobs without rows, which are evicted in
        time, and never rows without blobs. Takes some milliseconds. Raises EnvironmentFault when the disk is full.
        """
        samples = self.blobs.put(pack_samples(result.own), kept=True) if result.own else None
        chosen = {id(peer) for peer in result.peers}
        for published in notes.out:
            self.blobs.put(published.blob, kept=True)
        for fetched in notes.came:
            self.blobs.put(fetched.blob, kept=id(fetched.peer) in chosen)
        key = self.node.organs.publisher.identity.key
        rollouts = own_records(result, notes, key) + peer_records(result, notes)
        settings = settings_of(self.node, self.model, self.template)
        recorded = self.store.record(PassFacts(pass_record(result, samples), rollouts, settings, result.counts))
        for digest in recorded.forgotten:
            self.blobs.remove(digest)
        return recorded.pass_id
