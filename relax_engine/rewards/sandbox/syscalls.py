"""The system calls that a confined program must not make, by number, for the processors that we know.

Refused are: starting processes and programs, sockets, signals to others, debugging, namespaces and mounts, kernel
administration, shared memory and message queues, and ways around the limits (anonymous files, io_uring).
"""

from __future__ import annotations

from typing import NamedTuple


class Platform(NamedTuple):
    """`arch` is the kernel's AUDIT_ARCH value. `limited` calls are looked at: `clone`, `kill` and their like."""

    arch: int
    refused: tuple[int, ...]
    clone: int
    clone3: int
    signals: tuple[int, ...]
    prlimit: int
    prctl: int


_COMMON = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 440, 442, 447, 448)

PLATFORMS = {
    "x86_64": Platform(
        0xC000003E,
        (
            *(57, 58, 59, 322),  # fork, vfork, execve, execveat
            *(41, 42, 43, 49, 50, 288),  # socket, connect, accept, bind, listen, accept4
            *(101, 310, 311, 312, 129, 297),  # ptrace, process_vm_*, kcmp, sigqueueinfo
            *(29, 30, 31, 64, 68, 240, 319),  # shm*, semget, msgget, mq_open, memfd_create
            *(165, 166, 155, 161, 272, 308),  # mount, umount2, pivot_root, chroot, unshare, setns
            *(321, 298, 323, 248, 249, 250),  # bpf, perf_event_open, userfaultfd, keys
            *(
                175,
                313,
                176,
                246,
                320,
                169,
                167,
                168,
                179,
                163,
                103,
            ),  # modules, kexec, reboot, swap, quota, acct, syslog
            *(300, 303, 304, 135, 170, 171, 164, 227, 159, 305),  # fanotify, file handles, personality, names, clocks
            *(109, 112),  # setpgid, setsid
            *(141, 142, 144, 203, 314, 251, 256, 279, 139, 153),  # priorities, affinity, page migration
            *_COMMON,
        ),
        clone=56,
        clone3=435,
        signals=(62, 200, 234),
        prlimit=302,
        prctl=157,
    ),
    "aarch64": Platform(
        0xC00000B7,
        (
            *(221, 281),
            *(198, 203, 202, 200, 201, 242),
            *(117, 270, 271, 272, 138, 240),
            *(194, 195, 196, 190, 186, 180, 279),
            *(40, 39, 41, 51, 97, 268),
            *(280, 241, 282, 217, 218, 219),
            *(105, 273, 106, 104, 294, 142, 224, 225, 60, 89, 116),
            *(262, 264, 265, 92, 161, 162, 170, 112, 171, 266),
            *(154, 157),
            *(140, 118, 119, 122, 274, 30, 238, 239, 58),
            *_COMMON,
        ),
        clone=220,
        clone3=435,
        signals=(129, 130, 131),
        prlimit=261,
        prctl=167,
    ),
}
"""Numbers beyond 423 are the same everywhere: pidfds, io_uring, the mount API, process_madvise, secret memory."""
