"""What a daemon is made of, put together before anything is started: a mistake in the settings ends here."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from shoal.defenses.reputation import key_subject
from shoal.node.anchors import Anchors
from shoal.node.bridge.assemble import PURPOSE as BRIDGE_PURPOSE
from shoal.node.bridge.assemble import put_bridge
from shoal.node.bridge.feed import Bridge
from shoal.node.compute import ThreadCompute
from shoal.node.datasets import data_folder, local_specs
from shoal.node.events import RoundResult
from shoal.node.home import Home
from shoal.node.judges import make_judge
from shoal.node.loop import Habits, Node
from shoal.node.network import Network
from shoal.node.options import RunConfig
from shoal.node.prefixes import Prefixes
from shoal.node.store.blobs import BlobStore
from shoal.node.store.ledger import Store
from shoal.node.store.recorder import Recorder
from shoal.node.swarms import Revisions, standing
from shoal.node.view import Mode, PeerDict
from shoal.node.wiring import Conduct, Surroundings, defenses_without, sampling_of, wire
from shoal.protocol.envelope import Announcement
from shoal.protocol.errors import UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.settings import Libp2pSettings, PeerView, RecordFacts
from shoal.protocol.manifest import Manifest
from shoal.protocol.sequence import SequenceCounter
from shoal.protocol.staleness import Clock
from shoal.protocol.validity import forwardable
from shoal.protocol.wire import MILLION
from shoal.trainer.model import Policy, load_policy, model_folder, set_threads
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

log = logging.getLogger(__name__)

NO_HASH = bytes(32)
MIB = 2**20


@dataclass(slots=True)
class Learner:
    """The part of a daemon that has a model: the node with its ledger, its blobs and its verifiers."""

    node: Node
    store: Store
    recorder: Recorder
    grader: Grader
    compute: ThreadCompute
    bridge: Bridge | None = None

    def take_up_position(self, restored: int) -> None:
        """Go on behind everything that was ever published, whatever checkpoint was found.

        The position in swarm time is that of the ledger: no round is entered twice. Versions as published never fall:
        to peers a falling version is the mark of a sender that contradicts itself. What was published lately is served
        again.
        """
        node, publisher = self.node, self.node.organs.publisher
        position = self.store.last_position()
        node.round, node.passes = max((node.round, node.passes), (position.round, position.passes))
        publisher.version_base = max(0, position.version - restored)
        node.journal = self._enter
        oldest = node.organs.clock.round() - node.organs.prompts.manifest.limits.max_age_rounds
        publisher.served.clear()
        for round, digest, announcement in self.store.reader.served(oldest):
            blob = self.recorder.blobs.get(digest)
            here = Announcement.decode(announcement).header.swarm_id == publisher.claims.swarm_id
            if blob is not None and here:
                publisher.transport.offer(digest, blob)
                publisher.served.append((round, digest, announcement))

    def _enter(self, round: int, passes: int, version: int) -> None:
        self.store.enter(round, passes, version + self.node.organs.publisher.version_base)

    def close(self) -> None:
        """End the thread, the verifiers and the ledger."""
        self.compute.close()
        self.grader.close()
        self.store.close()


@dataclass(slots=True)
class Parts:
    """Everything that a daemon is made of."""

    home: Home
    config: RunConfig
    identity: Identity
    revisions: Revisions
    manifest: Manifest
    clock: Clock
    transport: Network
    learner: Learner | None
    standing: str = ""  # why peers refuse what this node shares; "" when it is admitted
    prefixes: Prefixes = field(init=False)

    def __post_init__(self) -> None:
        self.prefixes = Prefixes(self.transport.known)

    @property
    def mode(self) -> Mode:
        """Return what this node does."""
        return mode_of(self.config)

    def adopt(self, manifest: Manifest) -> None:
        """Live by a new revision from now on."""
        self.manifest = manifest
        self.look_at_standing()
        limits = manifest.limits
        self.transport.set_bits(limits.shard_bits, limits.shards_per_node)
        if self.learner:
            node = self.learner.node
            node.adopt(manifest)
            node.habits = fitted(node.habits, manifest)
            if not _sampler_fits(self.config, manifest):
                log.warning("the manifest now allows other sampler settings: peers refuse what this node samples")

    def look_at_standing(self) -> None:
        """See whether this node is admitted to its swarm."""
        admitted, how = standing(self.manifest, self.home)
        self.standing = "" if admitted else how

    def peers(self) -> list[PeerDict]:
        """Return the peers known now, those in reach first."""
        found = sorted(self.transport.known(), key=lambda peer: (not peer.connected, peer.key))
        return [self._peer(peer) for peer in found]

    def _peer(self, peer: PeerView) -> PeerDict:
        record = peer.record
        shown: PeerDict = {
            "key": peer.key.hex(),
            "connected": peer.connected,
            "last_seen": peer.last_seen,
            "addresses": list(peer.addresses),
            "policy_version": record.policy_version,
            "lineage": record.lineage.hex(),
            "revision": record.revision,
        }
        if self.learner:
            gate = self.learner.node.organs.gatherer.gate
            totals = self.learner.store.peer_totals(peer.key)
            operator = gate.operator_of(peer.key)
            shown |= {
                "operator": operator or "",
                "same_model": record.lineage == self.learner.node.organs.trainer.policy.lineage
                if record.lineage != NO_HASH
                else None,
                "used": totals.used,
                "refused": totals.refused,
                "reputation": gate.reputation.score(key_subject(peer.key)),
            }
        return shown

    def close(self) -> None:
        """Let go of what is held."""
        if self.learner:
            self.learner.close()


def mode_of(config: RunConfig) -> Mode:
    """Return what a node with these settings does."""
    for mode in ("bootstrap_only", "rollouts_only", "observe"):
        if getattr(config, mode):
            return mode
    return "train"


Connect = Callable[[Identity, Manifest, RunConfig, Callable[[], RecordFacts]], Network]
"""Makes the transport of a node, which is not started yet."""


def over_libp2p(identity: Identity, manifest: Manifest, config: RunConfig, about: Callable[[], RecordFacts]) -> Network:
    """Return the transport over real networks; its libraries are loaded here, and not by who runs without them."""
    from shoal.protocol.libp2p.transport import Libp2pTransport

    valid = forwardable(manifest.swarm_id)
    return Libp2pTransport(identity, manifest.swarm_id, _network(config, manifest), valid, about)


def put_together(home: Home, config: RunConfig, revisions: Revisions, connect: Connect = over_libp2p) -> Parts:
    """Load, wire and check everything; nothing listens and nothing is sent yet.

    Raises UsageError for settings that do not fit each other or the swarm, EnvironmentFault for what is missing.
    """
    identity = Identity.load(home.identity)
    manifest = revisions.current(revisions.round_at(time.time()))
    clock = Clock(time.time, manifest.genesis, manifest.round_seconds)
    facts = _Facts(revisions, config)
    transport = connect(identity, manifest, config, facts)
    transport.set_bits(manifest.limits.shard_bits, manifest.limits.shards_per_node)
    parts = Parts(home, config, identity, revisions, manifest, clock, transport, None)
    parts.look_at_standing()
    if not config.bootstrap_only:
        parts.learner = _learner(parts)
        facts.policy = parts.learner.node.organs.trainer.policy
    return parts


class _Facts:
    """What the node's record says of it now."""

    def __init__(self, revisions: Revisions, config: RunConfig) -> None:
        self.revisions = revisions
        self.mode = mode_of(config)
        self.policy: Policy | None = None

    def __call__(self) -> RecordFacts:
        policy = self.policy
        return RecordFacts(
            lineage=policy.lineage if policy else NO_HASH,
            tokenizer=policy.tokenizer_hash if policy else NO_HASH,
            policy_version=policy.version if policy else 0,
            capabilities=(self.mode,),
            revision=self.revisions.newest,
            invite=self.revisions.invite,
        )


def _network(config: RunConfig, manifest: Manifest) -> Libp2pSettings:
    network = config.network
    return Libp2pSettings(
        host=network.host,
        port=network.port,
        bootstraps=tuple(dict.fromkeys((*network.bootstrap, *manifest.bootstraps))),
        announce_addresses=network.announce,
        relay=config.bootstrap_only,
        use_relays=network.relays,
    )


def _learner(parts: Parts) -> Learner:
    """Load the model and wire the node; the slowest part of a start."""
    config, manifest, home = parts.config, parts.manifest, parts.home
    set_threads(config.life.threads)
    registry = TaskRegistry(local_specs(manifest, data_folder(home.path)))
    habits = _habits(config, manifest, registry)
    policy = _policy(config, manifest)
    store = Store(home.database, time.time, keep_rounds=config.life.keep_ledger_rounds)
    blobs = BlobStore(home.blobs, config.life.keep_blobs_mb * MIB)
    grader, compute = Grader(registry), ThreadCompute()
    surroundings = Surroundings(
        identity=parts.identity,
        manifest=manifest,
        registry=registry,
        grader=grader,
        transport=parts.transport,
        clock=parts.clock,
        compute=compute,
        sequences=SequenceCounter(store.commit_sequence, store.sequence_start()),
        prefix_of=parts.prefixes,
    )
    seed = f"{parts.identity.key.hex()}/{config.life.seed}"
    defenses = defenses_without(config.life.defenses_off)
    judge = partial(make_judge, config.defenses, defenses)
    anchors = Anchors(config.defenses.anchors)
    conduct = Conduct(
        config.learning, habits, defenses, seed, config.canary, judge=judge, anchors=anchors, engine=config.engine
    )
    node = wire(surroundings, conduct, policy, _not_recorded)
    if node.canary:
        node.canary.states.folder = home.checkpoints / "good"
    recorder = Recorder(store, blobs, node, str(model_folder(config.learning.model)), config.learning.chat_template)
    bridge = None
    if config.bridge.enabled:
        seed = parts.identity.derive(BRIDGE_PURPOSE)
        bridge = put_bridge(node, config.bridge, seed)
    return Learner(node, store, recorder, grader, compute, bridge)


def _not_recorded(result: RoundResult) -> None:
    """Stand in until the daemon takes the node in."""


def _policy(config: RunConfig, manifest: Manifest) -> Policy:
    learning, folder = config.learning, model_folder(config.learning.model)
    policy = load_policy(folder, learning.device, template=learning.chat_template)
    if manifest.lineages and policy.lineage.hex() not in manifest.lineages:
        raise UsageError(
            f"this swarm takes other models only: {folder} is of lineage {policy.lineage.hex()[:16]}, the manifest "
            f"names {', '.join(lineage[:16] for lineage in manifest.lineages)}: give another --model"
        )
    return policy


def _habits(config: RunConfig, manifest: Manifest, registry: TaskRegistry) -> Habits:
    """Return what this node does in a round. In an open swarm all prompts are shared: peers refuse own ones there."""
    mixing, mode = config.mixing, mode_of(config)
    shared_only = mixing.shared_prompts is None and manifest.admission.mode == "open"
    if shared_only:
        mixing = replace(mixing, shared_prompts=mixing.sampled)
    if mode == "rollouts_only":
        mixing = replace(mixing, external=0, tasks_per_node=mixing.sampled)
    habits = Habits(
        mixing=mixing,
        sampling=sampling_of(config.learning, registry),
        prompts=mixing.sampled,
        shared=mixing.shared,
        wait_seconds=config.life.wait_fraction * manifest.round_seconds,
        passes=config.life.passes,
        learns=mode == "train",
        samples=mode != "observe",
        shared_only=shared_only,
        hurried=True,
    )
    _check_slots(habits, manifest)
    if not _sampler_fits(config, manifest):
        low, high = (value / MILLION for value in manifest.limits.temperature)
        raise UsageError(
            f"peers would refuse what this node samples: the swarm allows --temperature {low:g} to {high:g} and "
            f"--max-tokens up to {manifest.limits.max_tokens}"
        )
    return habits


def _sampler_fits(config: RunConfig, manifest: Manifest) -> bool:
    learning, limits = config.learning, manifest.limits
    low, high = limits.temperature
    return low <= round(learning.temperature * MILLION) <= high and (learning.max_tokens or 1) <= limits.max_tokens


def fitted(habits: Habits, manifest: Manifest) -> Habits:
    """Return habits that a revision still allows: fewer prompts and one pass a round, when it has become narrower."""
    try:
        _check_slots(habits, manifest)
    except UsageError as error:
        log.warning("the manifest has become narrower (%s); this node samples less", error)
    else:
        return habits
    limits = manifest.limits
    slots = limits.shared_slots if habits.shared_only else min(limits.shared_slots + limits.own_slots, habits.prompts)
    prompts = max(1, min(habits.prompts, slots, limits.rollouts_per_key_per_round))
    shared = min(habits.shared, limits.shared_slots, prompts)
    if not habits.shared_only:
        prompts = min(prompts, shared + limits.own_slots)
    return replace(habits, prompts=prompts, shared=shared, passes=1)


def _check_slots(habits: Habits, manifest: Manifest) -> None:
    limits = manifest.limits
    shared, own = zip(*(map(len, habits.slots(done)) for done in range(habits.passes)), strict=True)
    wanted: Sequence[tuple[str, int, int]] = (
        ("shared", sum(shared), limits.shared_slots),
        ("own", sum(own), limits.own_slots),
        ("", sum(shared) + sum(own), limits.rollouts_per_key_per_round),
    )
    for name, asked, allowed in wanted:
        if asked > allowed:
            raise UsageError(
                f"{asked} {name} prompts a round are more than the {allowed} of the swarm's manifest: ".replace(
                    "  ", " "
                )
                + "lower --tasks-per-node, --shared-prompts or --passes"
            )
