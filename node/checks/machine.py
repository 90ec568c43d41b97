"""The machine: Python and packages, processor or GPU, disk, clock, threads."""

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shoal.node.checks.finding import Finding
from shoal.node.view import number

PACKAGES = ("shoal-node", "torch", "transformers", "hivemind", "libp2p", "aiohttp")
OLDEST_PYTHON = (3, 11)
CPU_FEATURES = ("amx_bf16", "amx_tile", "avx512_bf16", "avx512f", "avx2")
GIB = 2**30
LOW_DISK, LEAST_DISK = 5 * GIB, 1 * GIB
FAR_CLOCK, WRONG_CLOCK = 1.0, 3.0  # seconds: the network's own records are refused beyond the second
TIME_ERROR, STA_UNSYNC = 5, 0x40  # adjtimex(2)


def packages() -> Finding:
    """Check the version of Python, and that the packages that matter are installed."""
    if sys.version_info < OLDEST_PYTHON:
        return Finding("fail", f"Python {platform.python_version()}", "install Python 3.11 or newer")
    found, missing = [f"Python {platform.python_version()}"], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("fail", f"not installed: {', '.join(missing)}", "install Shoal again, with its dependencies")
    return Finding("ok", ", ".join(found))


def device(name: str) -> Finding:
    """Check that the device of the configuration exists here, and tell what it is."""
    import torch

    try:
        found = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch asserts where CUDA is not built in
        known = f"{torch.cuda.device_count()} CUDA devices here" if torch.cuda.is_available() else "no CUDA here"
        said = f"device {name!r} cannot be used: {(str(error) or type(error).__name__).splitlines()[0]}"
        return Finding("fail", said, f"{known}: set --device cpu, or install a driver and a CUDA build of torch")
    if found.type == "cuda":
        about = torch.cuda.get_device_properties(found)
        capability = f"compute {about.major}.{about.minor}, CUDA {torch.version.cuda}"
        return Finding("ok", f"{about.name}, {about.total_memory / GIB:.0f} GiB, {capability}")
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name(0)
        return Finding("warn", f"{_processor()}; {gpu} stands idle", "set --device cuda:0 to use it")
    return Finding("ok", _processor())


def _processor() -> str:
    cores = len(os.sched_getaffinity(0))
    flags: set[str] = set()
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                flags = set(value.split())
            elif name.strip() == "model name":
                model = value.strip()
    except OSError:
        pass
    known = [feature for feature in CPU_FEATURES if feature in flags]
    return f"{model}, {cores} cores usable" + (f", {' '.join(known)}" if known else "")


def threads(wanted: int) -> Finding:
    """Check that the threads of tensor arithmetic fit the cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    said = f"{wanted} of {cores} usable cores"
    if wanted > cores:
        return Finding("warn", said, f"set --threads to {cores} or less: more threads than cores stall each other")
    return Finding("ok", said)


def disk(home: Path, blobs_mb: int) -> Finding:
    """Check the space where the home lies (or would lie): blobs up to their limit, and checkpoints."""
    place = home
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    said = f"{free / GIB:.1f} GiB free at {place}"
    if free < LEAST_DISK:
        return Finding("fail", said, "free some space, or give a --home on a larger disk")
    if free < LOW_DISK + blobs_mb * 2**20:
        return Finding("warn", said, f"blobs take up to {blobs_mb} MB, checkpoints four times the weights each")
    return Finding("ok", said)


def clock(status: Mapping[str, Any] | None) -> Finding:
    """Check our clock: against the peers of the running node, else by what the kernel knows of its time source."""
    offset = number(status or {}, "network.clock_offset_seconds")
    advice = "let the system keep time: timedatectl set-ntp true (or chrony)"
    if offset is not None:
        said = f"{abs(offset):.2f} s {'behind' if offset > 0 else 'ahead of'} the peers (median)"
        if abs(offset) > WRONG_CLOCK:
            return Finding("fail", said, advice)
        return Finding("warn", said, advice) if abs(offset) > FAR_CLOCK else Finding("ok", said)
    synchronized = _kernel_synchronized()
    if synchronized is None:
        return Finding("warn", "the kernel does not tell whether its clock is kept", advice)
    if not synchronized:
        return Finding("warn", "nothing keeps this clock, says the kernel", advice + "; in a container: on the host")
    return Finding("ok", "the kernel says that its clock is kept")


def _kernel_synchronized() -> bool | None:
    """Return whether a time source disciplines the clock; None where it cannot be read."""
    timex = (ctypes.c_long * 64)()  # larger than struct timex; all zeros is modes = 0, which only reads
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    except (AttributeError, OSError):  # another libc or system
        return None
    if state < 0:
        return None
    flags = timex[5] & 0xFFFFFFFF  # modes, offset, freq, maxerror, esterror, status
    return state != TIME_ERROR and not flags & STA_UNSYNC
