"""Copies README, CONTRIBUTING, CHANGELOG and docs/ to one folder, from which MkDocs builds the site.

The README becomes the first page, and links between the pages are adapted. Links to files that are no pages,
such as configs and examples, become plain text.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build" / "docs-source"
API = """# Python API

::: ppcls.classifier.Classifier
::: ppcls.classifier.TrainingRun
::: ppcls.classifier.Evaluation
::: ppcls.classifier.Predictions
::: ppcls.postprocess.results.Classification
::: ppcls.deploy.predictor.Predictor
::: ppcls.recipe.load.load_config
::: ppcls.api
    options:
      members: [build_state, fit, evaluate, FitResult]
"""


def main() -> None:
    """Writes the folder."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    pages = {ROOT / "README.md": "index.md"}
    pages |= {ROOT / name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md")}
    # Pages of subfolders are copied into the same folder, so that links between pages need no folders.
    documents = sorted((ROOT / "docs").rglob("*.md"))
    pages |= {path: "-".join(path.relative_to(ROOT / "docs").parts) for path in documents}
    for path, name in pages.items():
        (TARGET / name).write_text(adapt_links(path, pages), encoding="utf-8")
    for path in (ROOT / "docs").rglob("*"):
        if path.is_file() and path.suffix != ".md":
            copy = TARGET / path.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    (TARGET / "api.md").write_text(API, encoding="utf-8")


def adapt_links(path: Path, pages: dict[Path, str]) -> str:
    """Returns a page whose links are relative to the common folder of all pages.

    Args:
        path: File of the page.
        pages: Files of all pages, and their names in the common folder.
    """

    def replace(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if target.startswith(("http://", "https://")) or not target:
            return match[0]
        file = (path.parent / target).resolve()
        if file in pages:
            return f"[{text}]({pages[file]}{anchor or ''})"
        if file.is_relative_to(ROOT / "docs") and file.is_file():
            return f"{image}[{text}]({file.relative_to(ROOT / 'docs')})"
        return f"`{file.relative_to(ROOT)}`" if text == target else text

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)", replace, path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
