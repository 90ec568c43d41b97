"""The commands' side of a running node: requests over the control socket of its home."""

import http.client
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

from shoal.protocol.errors import EnvironmentFault, ShoalError, UsageError

ANSWER_SECONDS = 10.0  # a node answers in milliseconds; one that is busy with a step does so too
SAVE_SECONDS = 1800.0  # a large model on a slow disk
MAX_ANSWER = 16 * 2**20
_CREDENTIALS = struct.Struct("3i")  # process, user and group of the one who listens


class NoNode(EnvironmentFault):
    """No node runs on this home."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
        credentials = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(credentials)
        if os.geteuid() not in (0, user):  # a short path lies in a folder where others could have put a socket
            raise PermissionError("another user listens there")


class Control:
    """Asks the node that runs on a home. Every call raises what the node answers, and EnvironmentFault as below.

    NoNode: none runs. EnvironmentFault: it is another user's, does not answer in time, or answers nonsense.
    """

    def __init__(self, path: Path, home: Path, seconds: float = ANSWER_SECONDS) -> None:
        self._path, self._home, self._seconds = path, home, seconds

    def status(self) -> dict[str, Any]:
        """Return the node's status: see `view.StatusDict`."""
        return self._expect(dict, self._ask("GET", "/status"))

    def peers(self) -> list[dict[str, Any]]:
        """Return the node's peers: see `view.PeerDict`."""
        return self._expect(list, self._ask("GET", "/peers"))

    def pause(self) -> None:
        """Take no new step until resumed."""
        self._ask("POST", "/pause")

    def resume(self) -> None:
        """Step again."""
        self._ask("POST", "/resume")

    def export(self, folder: Path) -> str:
        """Have the node write its model to a folder, and return the path."""
        body = {"folder": str(folder.absolute())}  # the node's working directory is another one
        return self._saved(self._ask("POST", "/export", body, SAVE_SECONDS))

    def checkpoint(self) -> str:
        """Have the node save its state, and return the path."""
        return self._saved(self._ask("POST", "/checkpoint", None, SAVE_SECONDS))

    def _saved(self, answer: Any) -> str:
        return str(self._expect(dict, answer).get("path", ""))

    def _expect(self, kind: type, answer: Any) -> Any:
        if not isinstance(answer, kind):
            raise EnvironmentFault(f"the node on {self._home} answers nonsense: is it of another version?")
        return answer

    def _ask(self, method: str, path: str, body: Any = None, seconds: float | None = None) -> Any:
        seconds = self._seconds if seconds is None else seconds
        connection = _UnixConnection(self._path, seconds)
        sent = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, sent, {"Content-Type": "application/json"} if sent else {})
            response = connection.getresponse()
            content = response.read(MAX_ANSWER + 1)
        except TimeoutError as error:
            raise EnvironmentFault(
                f"the node on {self._home} does not answer within {seconds:.0f} s: see its log; restart it if it hangs"
            ) from error
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise NoNode(f"no node runs on {self._home}: start one with `shoal run`, or name another --home") from error
        except PermissionError as error:
            raise EnvironmentFault(f"the node on {self._home} belongs to another user: ask as that user") from error
        except (OSError, http.client.HTTPException) as error:
            raise EnvironmentFault(f"the node on {self._home} went away: {error or type(error).__name__}") from error
        finally:
            connection.close()
        return self._read(response.status, content)

    def _read(self, status: int, content: bytes) -> Any:
        try:
            answer = json.loads(content) if len(content) <= MAX_ANSWER else None
        except ValueError:
            answer = None
        if status == 200:
            return answer
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            for kind in (UsageError, EnvironmentFault):
                if answer.get("exit_code") == kind.exit_code:
                    raise kind(answer["error"])
            raise ShoalError(answer["error"])
        raise ShoalError(f"the node on {self._home} failed to answer (HTTP {status}): see its log")
