"""What one run of a program may use."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Limits of one run; the first that is reached ends it.

    Attributes:
        cpu_s: Processor time, in whole seconds, of all threads together.
        wall_s: Time from start to end, in seconds.
        memory_mb: Address space, in MiB; a thread's stack takes 8.
        disk_mb: All files in the working directory together, in MiB (of each file, without namespaces).
        output_mb: Standard output, in MiB; as much again of errors.
        open_files: File descriptors.
    """

    cpu_s: int = 4
    wall_s: float = 8.0
    memory_mb: int = 1024
    disk_mb: int = 16
    output_mb: int = 1
    open_files: int = 64
