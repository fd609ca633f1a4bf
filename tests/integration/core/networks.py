"""Two sites and the way between them, as Linux network namespaces: each has an address and a loopback of its own.

Needs root and the `ip` of Debian's iproute2. No address or route of the machine itself is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

INTERFACE = "wan0"
_NEW_NETWORK = 0x40000000


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


@dataclass(frozen=True)
class Site:
    """A network of its own: one address, and the router for all others."""

    namespace: str
    address: str
    router: str

    def make(self, between: str, at_router: str) -> None:
        ip("netns", "add", self.namespace)
        ip("-n", self.namespace, "link", "set", "lo", "up")
        peer = ("peer", "name", at_router, "netns", between)
        ip("-n", self.namespace, "link", "add", INTERFACE, "type", "veth", *peer)
        for namespace, link, address in (
            (self.namespace, INTERFACE, self.address),
            (between, at_router, self.router),
        ):
            ip("-n", namespace, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", namespace, "link", "set", link, "up")
        ip("-n", self.namespace, "route", "add", "default", "via", self.router)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and the processes and threads that it starts, are of this site."""
        with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{self.namespace}") as here:
            _enter(here.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


@dataclass(frozen=True)
class Sites:
    """Site `a`, site `b`, and the router between them, which can lose everything without a word."""

    a: Site
    b: Site
    between: str

    def cut(self) -> None:
        for site in (self.a, self.b):
            ip("-n", self.between, "route", "add", "blackhole", f"{site.address}/32")

    def restore(self) -> None:
        for site in (self.a, self.b):
            ip("-n", self.between, "route", "del", "blackhole", f"{site.address}/32")


@contextlib.contextmanager
def two_sites() -> Iterator[Sites]:
    assert os.geteuid() == 0, "network namespaces need root"
    names = [f"relax-{os.getpid()}-{name}" for name in ("a", "b", "between")]
    sites = Sites(Site(names[0], "10.213.1.2", "10.213.1.1"), Site(names[1], "10.213.2.2", "10.213.2.1"), names[2])
    try:
        ip("netns", "add", sites.between)
        sites.a.make(sites.between, "to-a")
        sites.b.make(sites.between, "to-b")
        forward = ["sysctl", "-qw", "net.ipv4.ip_forward=1"]
        ip("netns", "exec", sites.between, *forward)
        yield sites
    finally:
        for name in names:
            with contextlib.suppress(AssertionError):
                ip("netns", "del", name)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NETWORK):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
