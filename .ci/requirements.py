"""Writes requirements*.txt from the dependencies in pyproject.toml.

``--check`` writes no files, and fails if a file is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
# Per file: its first line, the files that it includes, its extras; "" means the dependencies without extras.
FILES = {
    "requirements-common.txt": (
        "The dependencies of ppcls, without Paddle.",
        [],
        ["", "serve", "loggers", "demo"],
    ),
    "requirements-cpu.txt": (
        "For machines without an NVIDIA GPU; `make setup` installs this file if there is no NVIDIA driver.",
        ["requirements-common.txt"],
        ["cpu", "onnx"],
    ),
    "requirements.txt": (
        "For machines with an NVIDIA GPU; `make setup` installs this file if there is an NVIDIA driver.",
        ["requirements-common.txt"],
        ["gpu", "onnx"],
    ),
    "requirements-dev.txt": (
        "For tests and checks, in addition to requirements.txt or requirements-cpu.txt.",
        [],
        ["dev"],
    ),
    "requirements-docs.txt": (
        "For building the website of the documentation with `make docs`.",
        [],
        ["docs"],
    ),
}


def render(project: dict[str, Any], name: str) -> str:
    """Returns the text of one requirements file.

    Args:
        project: The section ``project`` of pyproject.toml.
        name: Name of the file.
    """
    title, included, extras = FILES[name]
    dependencies = {"": project["dependencies"], **project["optional-dependencies"]}
    lines = [f"# {title}", "# Written by `make requirements` from pyproject.toml; edit that file."]
    lines += [f"-r {file}" for file in included]
    lines += [requirement for extra in extras for requirement in dependencies[extra]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes or checks all files; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    check = parser.parse_args().check
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    differing = []
    for name in FILES:
        text = render(project, name)
        path = ROOT / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differing.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and differing:
        print(f"{', '.join(differing)}: differ from pyproject.toml; run `make requirements`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
