"""Where a manifest comes from: a file, a web address, or a peer that a link names. It is verified before it is used."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.defenses.text import safe
from shoal.protocol.errors import BadSignature, EnvironmentFault, FetchFailed, InvalidKey, ShoalError, UsageError
from shoal.protocol.limits import KIB
from shoal.protocol.manifest import Manifest

MANIFEST_BYTES = 128 * KIB
FETCH_SECONDS = 10.0
REDIRECTS = 5
DOCUMENT = "manifest"  # its name among the documents that a node serves

_LINK = re.compile(r"shoal://(?P<id>[0-9a-f]{64})@(?P<addresses>/[!-~]+)")


@dataclass(frozen=True, slots=True)
class Link:
    """A swarm by its id, and addresses at which somebody serves its manifest."""

    swarm_id: bytes
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        return f"shoal://{self.swarm_id.hex()}@{','.join(self.addresses)}"


def is_link(source: str) -> bool:
    """Return whether a source is meant as a link to a swarm."""
    return source.startswith("shoal:")


def is_url(source: str) -> bool:
    """Return whether a source is a web address."""
    return source.lower().startswith(("http://", "https://"))


def parse_link(text: str) -> Link:
    """Read shoal://ID@MULTIADDR[,MULTIADDR…]; raises UsageError."""
    match = _LINK.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text[:120]!r} is no link to a swarm: write shoal://ID@MULTIADDR, ID in 64 hex characters")
    return Link(bytes.fromhex(match["id"]), tuple(address for address in match["addresses"].split(",") if address))


def link_of(manifest: Manifest) -> Link | None:
    """Return the link by which a swarm is joined; None when its manifest names no bootstrap."""
    return Link(manifest.swarm_id, tuple(manifest.bootstraps)) if manifest.bootstraps else None


def check_source(source: str) -> None:
    """Raise UsageError for what can name no manifest, by its form alone: nothing is looked up."""
    if is_link(source):
        parse_link(source)
    elif not source.strip() or ("://" in source and not is_url(source)):
        raise UsageError(f"{source[:120]!r}: give a file, an http:// or https:// address, or a shoal:// link")


def read_manifest(source: str) -> Manifest:
    """Return the verified manifest at a FILE, an http(s) URL or a shoal:// link. Call it outside of an event loop.

    Raises UsageError for what is no manifest or is not signed by its founder, EnvironmentFault for what cannot be had.
    """
    if is_link(source):
        link = parse_link(source)
        manifest = read_text(_from_peers(link), source)
        if manifest.swarm_id != link.swarm_id:
            raise UsageError(f"{source}: the answer is the manifest of another swarm, {manifest.swarm_id.hex()}")
        return manifest
    check_source(source)
    return read_text(asyncio.run(_from_web(source)) if is_url(source) else _from_file(Path(source)), source)


def read_text(data: bytes, source: str) -> Manifest:
    """Read and verify a manifest; `source` says in an error where it came from."""
    if len(data) > MANIFEST_BYTES:
        raise UsageError(f"{source}: more than {MANIFEST_BYTES // KIB} KiB: that is no manifest")
    try:
        manifest = Manifest.from_toml(data.decode("utf-8"))
        manifest.verify()
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not UTF-8 text, so no manifest") from error
    except (BadSignature, InvalidKey) as error:
        raise UsageError(
            f"{source}: its founder did not sign this manifest: it was edited after signing, or somebody altered it"
        ) from error
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error
    return manifest


def _from_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MANIFEST_BYTES + 1)
    except OSError as error:
        raise EnvironmentFault(f"cannot read the manifest {path}: {error.strerror}") from error


async def _from_web(url: str) -> bytes:
    """Fetch a URL within ten seconds in all. A redirect leads to http(s) only, and never from https to http."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    plain = {"Accept-Encoding": "identity"}  # a compressed answer could be a bomb
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True, auto_decompress=False) as session,
            session.get(url, headers=plain, max_redirects=REDIRECTS) as answer,
        ):
            check_hops(url, [hop.url.scheme for hop in (*answer.history, answer)])
            if answer.status != 200:
                raise EnvironmentFault(f"cannot fetch {url}: the server answers {answer.status}")
            data = bytearray()
            async for chunk in answer.content.iter_any():
                data += chunk
                if len(data) > MANIFEST_BYTES:
                    break
            return bytes(data)
    except TimeoutError as error:
        raise EnvironmentFault(f"cannot fetch {url}: no answer within {FETCH_SECONDS:.0f} s") from error
    except (aiohttp.ClientError, ValueError) as error:  # the library raises ValueError for some odd addresses
        raise EnvironmentFault(f"cannot fetch {url}: {safe(str(error)) or type(error).__name__}") from error


def check_hops(url: str, schemes: Sequence[str]) -> None:
    """Raise UsageError when a way that began with encryption went on without: whoever sits there chooses the swarm."""
    if schemes[0] == "https" and "http" in schemes:
        raise UsageError(f"{url}: redirects to an address without encryption")


def _from_peers(link: Link) -> bytes:
    """Ask one address after the other; the last failure is raised when none answers."""
    from shoal.protocol.libp2p.ask import ask_address

    failure: ShoalError | None = None
    for address in link.addresses:
        try:
            return asyncio.run(ask_address(address, DOCUMENT, MANIFEST_BYTES, link.swarm_id))
        except ShoalError as error:
            failure = error
    known = isinstance(failure, FetchFailed) and failure.reason == "not_found"
    why = "it answers, but knows no such swarm" if known else safe(str(failure), 200)
    raise EnvironmentFault(f"the link gives no manifest: {why}") from failure
