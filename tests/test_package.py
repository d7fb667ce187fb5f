"""The package: requirements files, configs that are installed with it, and its changelog."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT

import ppcls
from ppcls.errors import UserError
from ppcls.recipe.load import ConfigSource


def test_requirements_files_agree_with_pyproject() -> None:
    found = subprocess.run([sys.executable, ROOT / ".ci/requirements.py", "--check"], capture_output=True)
    assert found.returncode == 0, found.stderr.decode()


def test_requirements_list_the_core_packages_first_and_each_package_once() -> None:
    lines = [
        line for line in (ROOT / "requirements.txt").read_text().splitlines() if line[:1] not in ("#", "")
    ]
    names = [re.split(r"[<>=;\[]", line)[0] for line in lines]
    assert names[:5] == ["paddlepaddle-gpu", "nvidia-dali-cuda120", "pyyaml", "numpy", "visualdl"]
    assert len(names) == len(set(names))


def test_package_is_imported_beside_a_folder_of_the_same_name(tmp_path: Path) -> None:
    """A clone is a folder named ppcls, which Python finds as a namespace package in its parent folder."""
    (tmp_path / "ppcls").mkdir()
    code = "import ppcls; print(ppcls.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == ppcls.__version__, done.stderr


def test_requirements_check_names_a_file_that_differs(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    for name in ("pyproject.toml", ".ci/requirements.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    script = tmp_path / ".ci/requirements.py"
    assert subprocess.run([sys.executable, script]).returncode == 0
    (tmp_path / "requirements.txt").write_text("numpy\n")
    found = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (
        1,
        "requirements.txt: differ from pyproject.toml; run `make requirements`\n",
    )


@pytest.mark.parametrize(
    ("lock", "listed", "python"),
    [("cpu", "requirements-cpu.txt", "3.11"), ("gpu", "requirements.txt", "3.10")],
)
def test_lock_file_has_all_requirements_with_hashes(lock: str, listed: str, python: str) -> None:
    text = (ROOT / f"requirements-{lock}.lock").read_text()
    pattern = r"^([\w.-]+)==(\S+).* \\\n    --hash=sha256:[0-9a-f]{64}"
    entries = re.findall(pattern, text, re.MULTILINE)
    versions = dict(entries)
    assert len(versions) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE)) > 50, "each has hashes"
    for line in (ROOT / listed).read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            assert versions[canonicalize_name(requirement.name)] in requirement.specifier, line


@pytest.mark.parametrize("name", ["quickstart.yaml", "configs/quickstart.yaml", "quickstart"])
def test_config_of_the_package_is_found_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ConfigSource.read(Path(name)).tree == ConfigSource.read(ROOT / "configs/quickstart.yaml").tree
    Path("quickstart.yaml").write_text("Global: {seed: 1}\n")
    assert ConfigSource.read(Path("quickstart.yaml")).tree == {"Global": {"seed": 1}}


def test_config_of_the_package_is_not_used_for_another_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such config file"):
        ConfigSource.read(tmp_path / "quickstart.yaml")


def test_changelog_has_the_current_version() -> None:
    versions = re.findall(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert ppcls.__version__ in versions


def test_site_has_every_document() -> None:
    names = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    documents = {"-".join(path.relative_to(ROOT / "docs").parts) for path in (ROOT / "docs").rglob("*.md")}
    assert {*names} == documents | {"index.md", "api.md", "CONTRIBUTING.md", "CHANGELOG.md"}
