"""Writes requirements*.txt from the dependencies in pyproject.toml.

``--check`` writes no files, and fails if a file is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
# The packages that ppcls is built on, which come first. Everything else serves them.
CORE = ["paddlepaddle-gpu", "paddlepaddle", "nvidia-dali-cuda120", "pyyaml", "numpy", "visualdl"]
# Per file: its first line and its extras; "" means the dependencies without extras.
FILES = {
    "requirements.txt": (
        "For machines with an NVIDIA GPU; `make setup` installs this file if there is an NVIDIA driver.",
        ["gpu", "", "serve", "loggers", "demo", "onnx"],
    ),
    "requirements-cpu.txt": (
        "For machines without an NVIDIA GPU; `make setup` installs this file if there is no NVIDIA driver.",
        ["cpu", "", "serve", "loggers", "demo", "onnx"],
    ),
    "requirements-dev.txt": (
        "For tests and checks, in addition to requirements.txt or requirements-cpu.txt.",
        ["dev"],
    ),
    "requirements-docs.txt": (
        "For building the website of the documentation with `make docs`.",
        ["docs"],
    ),
}


def render(project: dict[str, Any], name: str) -> str:
    """Returns the text of one requirements file. Each package is listed once, the core packages first.

    Args:
        project: The section ``project`` of pyproject.toml.
        name: Name of the file.
    """
    title, extras = FILES[name]
    dependencies = {"": project["dependencies"], **project["optional-dependencies"]}
    merged: dict[tuple[str, str], Requirement] = {}
    for extra in extras:
        for text in dependencies[extra]:
            requirement = Requirement(text)
            # A package with a marker is needed on some machines only, so its bounds can't be merged.
            key = (requirement.name.lower(), str(requirement.marker or ""))
            if key in merged:
                merged[key].specifier = narrow(merged[key].specifier & requirement.specifier)
            else:
                merged[key] = requirement
    lines = {key: write(requirement) for key, requirement in merged.items()}
    core = [lines.pop((package, "")) for package in CORE if (package, "") in lines]
    blocks = [
        [f"# {title}", "# Written by `make requirements` from pyproject.toml; edit that file."],
        core,
        list(lines.values()),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def narrow(specifiers: SpecifierSet) -> SpecifierSet:
    """Returns the specifiers without bounds that a narrower bound implies."""
    lower = [specifier for specifier in specifiers if specifier.operator == ">="]
    upper = [specifier for specifier in specifiers if specifier.operator == "<"]
    kept = [specifier for specifier in specifiers if specifier.operator not in (">=", "<")]
    if lower:
        kept.append(max(lower, key=lambda specifier: Version(specifier.version)))
    if upper:
        kept.append(min(upper, key=lambda specifier: Version(specifier.version)))
    return SpecifierSet(",".join(map(str, kept)))


def write(requirement: Requirement) -> str:
    """Returns a requirement as text, with the lower bound first."""
    specifiers = sorted(map(str, requirement.specifier), key=lambda text: text.startswith("<"))
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}{extras}{','.join(specifiers)}{marker}"


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
