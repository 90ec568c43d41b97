"""`shoal service`: a hardened systemd unit for this installation, printed and never installed."""

import os
import pwd
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shoal.node.home import Home
from shoal.node.layers import load_config
from shoal.protocol.errors import UsageError

WATCHDOG_SECONDS = 60
STOP_SECONDS = 600  # the step in hand is finished and saved; a second SIGTERM would end at once
START_SECONDS = 900  # a large model on a slow disk; the transport's own start is waited for inside

Flag = Annotated[bool, Parameter(negative="")]


@dataclass(frozen=True, slots=True)
class Installation:
    """What the unit has to name: command, home, user (none for a user's own manager), and whether a GPU is used."""

    command: Sequence[str]
    home: Path
    user: str | None
    gpu: bool
    reads: tuple[Path, ...] = ()  # e.g. the model


def service(*, user: Flag = False, system: Flag = False, home: Path | None = None, gpu: bool | None = None) -> int:
    """Print a systemd unit that runs the node of a home.

    Parameters
    ----------
    user
        For the user's own service manager: ~/.config/systemd/user/shoal.service.
    system
        For the machine: /etc/systemd/system/shoal.service (this is the default).
    home
        Folder of the node.
    gpu
        Whether the node's devices stay visible (as the configured device asks for when left out).
    """
    if user and system:
        raise UsageError("give --user or --system, not both")
    place = Home.find(home)
    learning = load_config(place).learning
    reads = () if learning.model == "default" else (Path(learning.model).absolute(),)
    uses_gpu = learning.device != "cpu" if gpu is None else gpu
    name = None if user else pwd.getpwuid(os.getuid()).pw_name
    sys.stdout.write(unit(Installation(shoal_command(), place.path, name, uses_gpu, reads)))
    return 0


def shoal_command() -> list[str]:
    """Return the absolute command line of this installation."""
    script = Path(sys.executable).parent / "shoal"
    if script.is_file():
        return [str(script)]
    found = shutil.which("shoal")
    return [found] if found else [sys.executable, "-m", "shoal.node.cli"]


def unit(installation: Installation) -> str:
    """Return the unit's text. Raises UsageError for a path that a unit cannot name."""
    start = " ".join(
        [
            *(quoted(word, first=place == 0) for place, word in enumerate(installation.command)),
            "run",
            "--home",
            quoted(str(installation.home), first=False),
        ]
    )
    system = installation.user is not None
    lines = [
        *_how_to_install(installation),
        "# Flags of a node that runs now are not in here: put them into config.toml of its home.",
        "[Unit]",
        "Description=Shoal swarm-training node",
        *(["Wants=network-online.target", "After=network-online.target time-sync.target"] if system else []),
        "StartLimitIntervalSec=600",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={start}",
        *([f"User={installation.user}"] if system else []),
        "Restart=on-failure",
        "RestartSec=10",
        "# Wrong settings and a machine that refuses do not get better by trying again.",
        "RestartPreventExitStatus=2 3",
        f"TimeoutStartSec={START_SECONDS}",
        "# One SIGTERM, to the node alone: it finishes the step in hand, saves, and ends what it started.",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_SECONDS}",
        "# Fed only while steps end in time; what hangs ends with a trace of every thread, and is started again.",
        f"WatchdogSec={WATCHDOG_SECONDS}",
        "UMask=0077",
        "# The memory holds the private key: no core files.",
        "LimitCORE=0",
        "LimitNOFILE=65536",
        "",
        *_seccomp(),
        *(_mounts(installation) if system else ["# Sandboxing by mounts needs the system's own service manager."]),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if system else 'default.target'}",
        "",
    ]
    return "\n".join(lines)


def _how_to_install(installation: Installation) -> list[str]:
    if installation.user is None:
        return [
            "# shoal service --user > ~/.config/systemd/user/shoal.service",
            "# systemctl --user daemon-reload && systemctl --user enable --now shoal && loginctl enable-linger",
        ]
    lines = [
        "# shoal service --system | sudo tee /etc/systemd/system/shoal.service",
        "# sudo systemctl daemon-reload && sudo systemctl enable --now shoal",
    ]
    if installation.user == "root":
        lines.append("# It would run as root. Better: make a user for it, and print this unit as that user.")
    return lines


def _seccomp() -> list[str]:
    return [
        "NoNewPrivileges=yes",
        "LockPersonality=yes",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "RestrictNamespaces=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "SystemCallArchitectures=native",
        "SystemCallFilter=@system-service",
        "SystemCallErrorNumber=EPERM",
        "# MemoryDenyWriteExecute is left out: torch compiles kernels into memory that it then runs.",
    ]


def _mounts(installation: Installation) -> list[str]:
    used = [
        installation.home,
        Path(installation.command[0]),
        Path(sys.prefix),
        Path(sys.base_prefix),
        *installation.reads,
    ]
    at_home = any(path.is_relative_to(place) for path in used for place in ("/home", "/root", "/run/user"))
    # A GPU is a device; protecting the clock restricts devices, too.
    devices = [] if installation.gpu else ["PrivateDevices=yes", "ProtectClock=yes"]
    return [
        "CapabilityBoundingSet=",
        "AmbientCapabilities=",
        "ProtectSystem=strict",
        f"ProtectHome={'read-only' if at_home else 'yes'}",
        *_writable(installation.home),
        "CacheDirectory=shoal",
        "Environment=XDG_CACHE_HOME=/var/cache/shoal",
        "PrivateTmp=yes",
        *(
            ["# PrivateDevices and ProtectClock are left out: they would hide the GPU."]
            if installation.gpu
            else devices
        ),
        "PrivateMounts=yes",
        "ProtectControlGroups=yes",
        "ProtectHostname=yes",
        "ProtectKernelLogs=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelTunables=yes",
        "ProtectProc=invisible",
        "KeyringMode=private",
        "RemoveIPC=yes",
    ]


def _writable(home: Path) -> list[str]:
    if home.parent == Path("/var/lib"):
        return [f"StateDirectory={quoted(home.name)}", "StateDirectoryMode=0700"]
    return [f"ReadWritePaths={quoted(str(home))}"]


def quoted(word: str, first: bool = True) -> str:
    """Return a word as a unit's line takes it: specifiers, variables, quotes and spaces lose their meaning.

    `first`: it is no argument of a command, so that a dollar sign means nothing. Raises UsageError for what cannot
    stand in a line.
    """
    if not word.isprintable():
        raise UsageError(f"a systemd unit cannot name {word!r}: choose another folder")
    word = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    word = word if first else word.replace("$", "$$")
    return f'"{word}"' if any(sign in word for sign in " '\";\\") else word
