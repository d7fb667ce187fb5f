"""Which network interface has an address."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def interface_of(address: str) -> str | None:
    """Returns the network interface that has an IPv4 address, such as ``eth0``; None where none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
