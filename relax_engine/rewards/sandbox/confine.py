"""Confining the process that is about to run a program, layer by layer."""

from __future__ import annotations

import os
import resource
import sys
import sysconfig

from . import landlock, namespaces, seccomp
from .kernel import die_with_parent
from .limits import Limits

MIB = 1 << 20
READABLE = (
    *("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache"),
    *("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"),
)


def missing_layers() -> list[str]:
    """What this machine lacks of that which `confine` needs, in words; empty if nothing."""
    missing = []
    if sys.platform != "linux":
        return ["Linux"]
    if not seccomp.supported():
        missing.append("a filter of system calls for this processor")
    if not landlock.version():
        missing.append("Landlock (Linux 5.13 or later, and allowed by the container)")
    return missing


def library_directory() -> str:
    """Where installed packages are."""
    return sysconfig.get_paths()["purelib"]


def confine(limits: Limits, directory: str, parent: int) -> None:
    """Take from this process all but the use of `directory` and of the limits; there is no way back.

    It ends with the process `parent`, in whose process group it stays.

    Raises:
        OSError: a layer cannot be put on; the program must not run.
    """
    output, disk = limits.output_mb * MIB, limits.disk_mb * MIB
    own_disk = namespaces.enter(directory, limits.disk_mb)
    os.chdir(directory)
    readable = {*READABLE, sys.prefix, sys.base_prefix, library_directory()}
    landlock.restrict(readable, directory)
    for name, value in (
        ("CPU", limits.cpu_s),
        ("AS", limits.memory_mb * MIB),
        ("FSIZE", max(output, disk) if own_disk else output),
        ("NOFILE", limits.open_files),
        ("CORE", 0),
        ("MEMLOCK", 0),
        ("MSGQUEUE", 0),
    ):
        number = getattr(resource, f"RLIMIT_{name}")
        _, most = resource.getrlimit(number)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (value, value))
    die_with_parent()
    if os.getppid() != parent:
        raise OSError("the supervisor is gone")
    seccomp.install(os.getpid())
