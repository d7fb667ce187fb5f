"""Two hosts with separate network stacks, where the system allows it: network namespaces and a cable."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from running import free_port
from runs import GUARD


class Hosts:
    """Two hosts: their addresses, and what runs a command on each.

    Args:
        names: Names of their namespaces; empty if both are this machine.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.prefixes = [["ip", "netns", "exec", name] for name in names] or [[], []]
        self.addresses = ["10.77.0.1", "10.77.0.2"] if names else ["127.0.0.1"] * 2
        self.environment = {"GLOO_SOCKET_IFNAME": "eth0"} if names else {}

    def port(self) -> int:
        """Returns a port that is free on the first host; in a namespace all are."""
        return 8090 if self.environment else free_port()

    def signal(self, host: int, number: int) -> None:
        """Sends a signal to all processes of a host that is a namespace."""
        command = ["ip", "netns", "pids", self.names[host]]
        found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=GUARD)
        for process in map(int, found.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def limit_rate(self, host: int, rate: str) -> None:
        """Limits the rate at which a host sends, such as ``1mbit``."""
        command = ["tc", "-n", self.names[host], "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate]
        subprocess.run([*command, "burst", "16kb", "latency", "200ms"], check=True, timeout=GUARD)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=GUARD)


def _connect(names: list[str]) -> None:
    """Makes two network namespaces and a cable between them."""
    for name in names:
        _ip("netns", "add", name)
    _ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
    for number, name in enumerate(names, start=1):
        _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")


@contextmanager
def two_hosts(known: Mapping[str, int] | None = None) -> Iterator[Hosts]:
    """Makes two hosts for the block. Where namespaces are not allowed, both are this machine.

    Args:
        known: Names that both hosts resolve, with the numbers of the hosts. ``ip netns exec`` shows a file of
            its own as ``/etc/hosts``.
    """
    names = [f"ppcls-{secrets.token_hex(4)}-{number}" for number in (1, 2)]
    folders = [Path("/etc/netns") / name for name in names]
    try:
        try:
            _connect(names)
            hosts = Hosts(names)
            for folder in folders if known else ():
                folder.mkdir(parents=True)
                lines = [
                    "127.0.0.1 localhost",
                    *(f"{hosts.addresses[i]} {name}" for name, i in (known or {}).items()),
                ]
                (folder / "hosts").write_text("".join(f"{line}\n" for line in lines))
        except (OSError, subprocess.CalledProcessError):
            hosts = Hosts([])
        yield hosts
    finally:
        for name in names if shutil.which("ip") else ():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=GUARD)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
