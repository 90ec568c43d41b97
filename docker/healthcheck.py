"""Ends with 0 when the node of this container is healthy: its own health server on loopback answers 200."""

import http.client
import os
import sys

TIMEOUT_SECONDS = 8.0
DEFAULT_PORT = 47701


def main() -> int:
    """Ask /healthz, show its line for `docker inspect`, and return the exit code; 1 as well when nobody answers."""
    port = int(os.environ.get("SHOAL_HEALTH_PORT") or DEFAULT_PORT)
    # Not urllib: it would go through a proxy that the environment names.
    door = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        door.request("GET", "/healthz")
        answer = door.getresponse()
        line = answer.read(200).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"no answer on port {port}: {error}\n")
        return 1
    sys.stdout.write(line + "\n")
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
