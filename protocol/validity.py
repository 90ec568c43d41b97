"""What gossip forwards: a rule that needs no memory and no clock, so that it gives the same answer on every node.

A node that forwards what its neighbour's rule refuses is blamed for it. So whatever honest nodes can see differently
(the round, who is admitted, what was seen before) is left to the gate behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from shoal.protocol.envelope import ANNOUNCEMENT_SIZE, PROTOCOL_VERSION, Announcement, Kind, verify_announcement
from shoal.protocol.errors import ProtocolError
from shoal.protocol.limits import DEFAULT_LIMITS

_VERSION_AT = 16  # behind the domain tag, in every version


def forwardable(swarm_id: bytes) -> Callable[[bytes], bool | None]:
    """The rule of a swarm: True for a rollout's announcement with a good signature, None for another protocol version.

    False blames whoever forwarded it. It never raises. Order: size, version, header, swarm, signature.
    """

    def valid(data: bytes) -> bool | None:
        if not _VERSION_AT + 2 <= len(data) <= DEFAULT_LIMITS.announcement_bytes:
            return False
        if struct.unpack_from(">H", data, _VERSION_AT)[0] != PROTOCOL_VERSION:
            return None
        if len(data) != ANNOUNCEMENT_SIZE:
            return False
        try:
            announcement = Announcement.decode(data)
            if announcement.header.kind is not Kind.ROLLOUT or announcement.header.swarm_id != swarm_id:
                return False
            verify_announcement(announcement)
        except ProtocolError:
            return False
        return True

    return valid
