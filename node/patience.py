"""Who sent too slowly: such a peer is passed over for a while, so that it costs one pass and not each of them."""

from collections import OrderedDict

LONGEST = 64  # passes
MOST = 1024  # peers remembered


class Patience:
    """Peers whose blob did not come in time, each passed over for 1, 2, 4, … passes while that goes on."""

    def __init__(self) -> None:
        self._pass = 0
        self._slow: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # passes to pass over, and the first one after

    def begin(self) -> set[bytes]:
        """Begin a pass; return the keys that are passed over in it."""
        self._pass += 1
        return {key for key, (_, again) in self._slow.items() if again > self._pass}

    def slow(self, key: bytes) -> None:
        """Note that a peer was given up on in this pass."""
        wait = min(2 * self._slow.pop(key, (0, 0))[0] or 1, LONGEST)
        self._slow[key] = (wait, self._pass + 1 + wait)
        while len(self._slow) > MOST:
            self._slow.popitem(last=False)

    def answered(self, key: bytes) -> None:
        """Note that a peer sent what it was asked for."""
        self._slow.pop(key, None)
