"""The part of a verifier child's fence that the kernel keeps: a filter of system calls (seccomp) that code cannot lift.

Python's audit hook does not see everything: a second interpreter in the process has none, and functions like `mkfifo`,
`shm_open` or `pidfd_send_signal` raise no event. The filter refuses the calls themselves, by ending the process. It
exists for Linux on x86-64; elsewhere the audit hook stands alone.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterable

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of the filter's machine
_ALLOW, _KILL, _NOT_THERE = 0x7FFF0000, 0x80000000, 0x00050000 | 38  # the last: ENOSYS, so that a caller falls back
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in what a filter sees; eight bytes an argument
_X86_64, _X32 = 0xC000003E, 0x40000000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CLONE_THREAD = 0x10000

# Numbers of x86-64. What opens a way out, reaches another process, or leaves something behind.
_NETWORK = (41, 42, 49, 50, 53)  # socket, connect, bind, listen, socketpair
_PROCESSES = (57, 58, 59, 322)  # fork, vfork, execve, execveat
_OTHERS = (62, 200, 129, 297, 424, 434, 438, 101, 310, 311)  # kill, tkill, sigqueues, pidfds, ptrace, others' memory
_PRIORITIES = (141, 142, 144, 203, 160, 251, 314, 256, 279)  # setpriority, scheduling, affinity, setrlimit, others' I/O
_FILES = (
    *(76, 77, 82, 83, 84, 85, 86, 87, 88),  # truncate, ftruncate, rename, mkdir, rmdir, creat, link, unlink, symlink
    *(90, 91, 92, 93, 94, 132, 133, 188, 189, 190, 197, 198, 199, 235, 261, 280),  # modes, owners, mknod, xattrs, times
    *(258, 259, 260, 263, 264, 265, 266, 268, 316, 452, 463, 466, 469),  # the same relative to a directory
)
_SYSTEM = (
    *(161, 165, 166, 155, 169, 246, 320, 175, 313, 176, 321, 298, 323, 248, 249, 250),  # mounts, modules, bpf, keys
    *(164, 227, 159, 305, 170, 171),  # the machine's clock and name, which root may set
    *(153, 163, 167, 168, 172, 173, 103, 179),  # hang-up, accounting, swap, ports, the kernel's log, quotas
    *(29, 64, 68, 240),  # System V memory, semaphores and queues, which outlive the process
    *(272, 304, 308, 317, 425, 426, 427, 428, 429, 430, 442),  # unshare, setns, seccomp, io_uring, the new mounts
)
_OPEN, _OPENAT, _CLONE, _TGKILL, _PRLIMIT = 2, 257, 56, 234, 302
_PRCTL, _PDEATHSIG = 157, 1  # to outlive the worker
_IOCTL, _TIOCSTI, _TIOCLINUX = 16, 0x5412, 0x541C  # to type into the terminal, for which reading it is enough
_NEWER_FORMS = (435, 437)  # clone3 and openat2 keep their flags in memory, which a filter cannot read

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def confine() -> bool:
    """Put the filter on this process for good; False where there is none, or the kernel does not take one."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    code = b"".join(struct.pack("=HBBI", *step) for step in _program(os.getpid()))
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.create_string_buffer(program), 0, 0) == 0


def _program(own: int) -> Iterable[_Instruction]:
    """Yield the filter of the process with this id: refuse what is named, allow the rest (late imports need much)."""
    yield (_LOAD, 0, 0, _ARCHITECTURE)
    yield (_EQUAL, 1, 0, _X86_64)
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER)
    yield (_AT_LEAST, 0, 1, _X32)  # the same calls under other numbers
    yield (_RETURN, 0, 0, _KILL)
    for number in (*_NETWORK, *_PROCESSES, *_OTHERS, *_PRIORITIES, *_FILES, *_SYSTEM):
        yield (_EQUAL, 0, 1, number)
        yield (_RETURN, 0, 0, _KILL)
    for number in _NEWER_FORMS:
        yield (_EQUAL, 0, 1, number)
        yield (_RETURN, 0, 0, _NOT_THERE)
    yield from _unless(_OPEN, 1, (_ANY_BIT, 0, 1, _WRITING))
    yield from _unless(_OPENAT, 2, (_ANY_BIT, 0, 1, _WRITING))
    yield from _unless(_CLONE, 0, (_ANY_BIT, 1, 0, _CLONE_THREAD))
    yield from _unless(_TGKILL, 0, (_EQUAL, 1, 0, own))  # abort() is a signal to oneself
    yield from _unless(_PRLIMIT, 2, (_EQUAL, 1, 0, 0))  # only looking: no new limit is given
    yield from _never(_PRCTL, 0, (_PDEATHSIG,))
    yield from _never(_IOCTL, 1, (_TIOCSTI, _TIOCLINUX))
    yield (_RETURN, 0, 0, _ALLOW)


def _never(number: int, argument: int, values: tuple[int, ...]) -> Iterable[_Instruction]:
    """Yield the refusal of one call for these values of the low half of an argument."""
    yield (_EQUAL, 0, 2 * len(values) + 2, number)
    yield (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)
    for value in values:
        yield (_EQUAL, 0, 1, value)
        yield (_RETURN, 0, 0, _KILL)
    yield (_RETURN, 0, 0, _ALLOW)


def _unless(number: int, argument: int, test: _Instruction) -> Iterable[_Instruction]:
    """Yield the refusal of one call, unless the low half of an argument makes `test` jump over it."""
    yield (_EQUAL, 0, 4, number)
    yield (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)
    yield test
    yield (_RETURN, 0, 0, _KILL)
    yield (_RETURN, 0, 0, _ALLOW)
