"""Two doors to a running node: health and metrics on loopback TCP for reading, a Unix socket in the home for steering.

TCP serves GET on /healthz, /readyz and /metrics and nothing else. The Unix socket is its owner's alone (0600) and
serves these, /status and /peers, and POST on /pause, /resume, /export and /checkpoint. Whatever fails in here is an
answer to the one who asked; it never reaches the training.
"""

import asyncio
import contextlib
import errno
import ipaddress
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from shoal.defenses.text import safe
from shoal.node.metrics import exposition, registry
from shoal.node.view import NodeView
from shoal.protocol.errors import EnvironmentFault, ShoalError, UsageError

MAX_BODY = 64 * 1024
BACKLOG = 64
STOP_SECONDS = 2.0  # for requests under way when the node ends
OWNER_ONLY = stat.S_IRUSR | stat.S_IWUSR

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def host_allowed(header: str | None, bound: str) -> bool:
    """Return whether a Host header may be answered on a server bound to the address or name `bound`.

    A web page can make a browser ask for its own domain after pointing it at this machine (DNS rebinding); the header
    then carries that domain. Addresses cannot be rebound, and a request without the header comes from no browser.
    Names without a dot are let in beyond loopback only: they are those of containers in one network.
    """
    if header is None:
        return True
    bare = header.removeprefix("[").partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    name = bare.lower().removesuffix(".")
    if name in ("localhost", bound.lower()) or _address(name) is not None:
        return True
    address = _address(bound)
    inside = bound == "localhost" or (address is not None and address.is_loopback)
    return not inside and bool(name) and "." not in name


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(text)
    return None


def public_app(view: NodeView, bound: str) -> web.Application:
    """Return what is served on TCP."""

    @web.middleware
    async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not host_allowed(request.headers.get("Host"), bound):
            return _line(421, "this name is not served here: ask for the address")
        return await handler(request)

    app = web.Application(middlewares=[check_host], client_max_size=MAX_BODY)
    _add_health(app, view)
    return app


def control_app(view: NodeView) -> web.Application:
    """Return what is served on the control socket."""
    app = web.Application(middlewares=[_errors_as_json], client_max_size=MAX_BODY)
    _add_health(app, view)
    steering = _Steering(view)
    app.router.add_get("/status", steering.status, allow_head=False)
    app.router.add_get("/peers", steering.peers, allow_head=False)
    for verb in (steering.pause, steering.resume, steering.export, steering.checkpoint):
        app.router.add_post(f"/{verb.__name__}", verb)
    return app


def _add_health(app: web.Application, view: NodeView) -> None:
    metrics = registry(view)

    async def healthz(_: web.Request) -> web.Response:
        return _verdict(*view.stepping())

    async def readyz(_: web.Request) -> web.Response:
        return _verdict(*view.ready())

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=exposition(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    for path, handler in (("/healthz", healthz), ("/readyz", readyz), ("/metrics", scrape)):
        app.router.add_get(path, handler, allow_head=False)
    app.on_response_prepare.append(_plain_headers)


async def _plain_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "shoal"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"


def _verdict(good: bool, reason: str) -> web.Response:
    return _line(200 if good else 503, reason)


def _line(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=safe(text, 500) + "\n")


def _json(status: int, body: Any) -> web.Response:
    return web.Response(status=status, text=json.dumps(body, default=str), content_type="application/json")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what went wrong with the exit code that the command shall have."""
    try:
        return await handler(request)
    except ShoalError as error:
        return _json(409, {"error": safe(str(error), 1000), "exit_code": error.exit_code})
    except OSError as error:  # an export to a full disk, a folder that is not ours
        place = f" {error.filename}" if error.filename else ""
        text = safe(f"cannot write{place}: {error.strerror or error}", 1000)
        return _json(409, {"error": text, "exit_code": EnvironmentFault.exit_code})


class _Steering:
    """The verbs of the control socket."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._saving = asyncio.Lock()  # two saves at once would fight for the disk and the weights

    async def status(self, _: web.Request) -> web.Response:
        return _json(200, self._view.status())

    async def peers(self, _: web.Request) -> web.Response:
        return _json(200, self._view.peers())

    async def pause(self, _: web.Request) -> web.Response:
        self._view.pause()
        return _json(200, {"paused": True})

    async def resume(self, _: web.Request) -> web.Response:
        self._view.resume()
        return _json(200, {"paused": False})

    async def export(self, request: web.Request) -> web.Response:
        folder = await _folder(request)
        return await self._save(lambda: self._view.export(folder))

    async def checkpoint(self, _: web.Request) -> web.Response:
        return await self._save(self._view.checkpoint)

    async def _save(self, write: Callable[[], Awaitable[str]]) -> web.Response:
        if self._saving.locked():
            raise ShoalError("another export or checkpoint is under way: try again when it is done")
        async with self._saving:
            return _json(200, {"path": await write()})


async def _folder(request: web.Request) -> str:
    try:
        body = await request.json()
    except ValueError as error:
        raise UsageError(f"not valid JSON: {error}") from error
    folder = body.get("folder") if isinstance(body, dict) else None
    if not isinstance(folder, str) or not os.path.isabs(folder) or "\0" in folder:
        raise UsageError('give {"folder": "/an/absolute/path"}')
    return folder


class HealthServer:
    """Serves the two doors in the running event loop."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._runners: list[web.AppRunner] = []
        self._socket_path: Path | None = None

    async def open_public(self, host: str, port: int) -> int:
        """Listen on TCP and return the port; 0 takes any free one.

        Raises UsageError for a port that is taken or an address that is not this machine's, EnvironmentFault for one
        that may not be used.
        """
        runner = await self._runner(public_app(self._view, host))
        site = web.TCPSite(runner, host, port, backlog=BACKLOG)
        try:
            await site.start()
        except OSError as error:
            await self._drop(runner)
            raise refused(error, host, port) from error
        return runner.addresses[0][1]

    async def open_control(self, path: Path) -> None:
        """Listen on a Unix socket that its owner alone can use; a stale one is replaced.

        The lock on the home is what keeps a second node away. Raises EnvironmentFault when it cannot be made.
        """
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            os.fchmod(listening.fileno(), OWNER_ONLY)  # before bind: the file never has other rights
            if path.is_socket():
                path.unlink()
            listening.bind(str(path))
        except OSError as error:
            listening.close()
            raise EnvironmentFault(f"no control socket at {path}: {error.strerror or error}") from error
        self._socket_path = path
        runner = await self._runner(control_app(self._view))
        await web.SockSite(runner, listening, backlog=BACKLOG).start()

    async def close(self) -> None:
        """Stop listening and remove the socket; harmless when repeated."""
        while self._runners:
            await self._drop(self._runners[-1])
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)
            self._socket_path = None

    async def _runner(self, app: web.Application) -> web.AppRunner:
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=STOP_SECONDS)
        await runner.setup()
        self._runners.append(runner)
        return runner

    async def _drop(self, runner: web.AppRunner) -> None:
        self._runners.remove(runner)
        await runner.cleanup()


def refused(error: OSError, host: str, port: int) -> ShoalError:
    """Return what to say of a health port that cannot be had."""
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"port {port} for health and metrics is taken: give another --health-port, or 0 for none")
    if error.errno == errno.EACCES:
        return EnvironmentFault(f"port {port} may not be used by this user: give a --health-port above 1023")
    return UsageError(f"--health-host {host}: cannot listen there: {error.strerror or error}")
