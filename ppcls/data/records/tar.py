"""Lists the members of tar files."""

from __future__ import annotations

import tarfile


def list_members(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """Returns all members of a tar file, in order.

    A negative size in a pax header would make tarfile read the same headers forever.

    Raises:
        tarfile.TarError: A header is damaged.
        ValueError: A size is negative, or tarfile can't read a pax header or the map of a sparse file.
    """
    members: list[tarfile.TarInfo] = []
    for member in tar:
        if member.size < 0 or (members and member.offset <= members[-1].offset):
            raise ValueError(f"{member.name!r} has an invalid size")
        members.append(member)
    return members
