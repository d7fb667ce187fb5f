"""The functions with which a save changes the file system; tests make each of them fail or kill the run."""

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
