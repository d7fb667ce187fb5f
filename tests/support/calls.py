"""The calls by which a save changes the file system, all of them; any may fail, or be a process's last."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

CALLS: list[tuple[Any, str]] = [
    *((os, name) for name in ("open", "fsync")),
    *((Path, name) for name in ("open", "mkdir", "rename", "replace", "symlink_to", "unlink")),
    (shutil, "rmtree"),
]
