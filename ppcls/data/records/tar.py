"""Lists the members of tar files."""

from __future__ import annotations

import errno
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def check_sizes() -> Iterator[None]:
    """Reports sizes that are too large as errors of the file. Opening a tar file reads its first header.

    Raises:
        ValueError: A header or a file is larger than the memory or any file.
    """
    try:
        yield
    except MemoryError:  # tarfile reads a long name at once, whose size can be 8 GiB
        raise ValueError("there is not enough memory for a header of the size that the file claims") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a seek
            raise
        raise ValueError("a size leads beyond the end of the largest possible file") from None
