"""Applies confirmed fixes to a folder of pictures, and reverts them. No picture is deleted or overwritten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath

from ppcls.audit.files import Fix, read_table, write_table
from ppcls.data.index.class_folders import PARTS, find_class_folders
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import one_line, read_regular
from ppcls.registry import suggest

_COLUMNS = ["action", "file", "label", "reason"]
_MOVES = ["from", "to"]


def read_fixes(path: Path) -> list[Fix]:
    """Returns the fixes in a CSV file with the columns action, file and label; reason is optional.

    Raises:
        UserError: The file is missing, or a line is invalid.
    """
    rows = _read_rows(path, _COLUMNS[:3])
    fixes = []
    problems = []
    for number, row in rows:
        fix = Fix(row["action"].strip(), row["file"], row["label"].strip(), "")
        where = f"{path}, line {number}"
        if fix.action not in ("relabel", "remove"):
            problems.append(f"{where}: expected the action relabel or remove, got {fix.action!r}")
        elif fix.action == "relabel" and not fix.label:
            problems.append(f"{where}: relabel needs a class in the column label")
        fixes.append(fix)
    raise_line_errors(problems)
    return fixes


def apply_fixes(root: Path, fixes: Sequence[Fix], journal_folder: Path) -> tuple[Path, int, int]:
    """Moves pictures to the folders of their new classes, or out of the folder of pictures.

    Removed pictures move to a folder beside ``root`` whose name ends in ``-removed``. All fixes are checked
    before the first picture is moved.

    Args:
        root: Folder of the pictures, with one subfolder per class, or with train and val.
        fixes: The fixes.
        journal_folder: Folder for the list of moves, with which `revert_fixes` reverts them.

    Returns:
        The list of moves, the number of relabelled and of removed pictures.

    Raises:
        UserError: A fix does not fit the folder; nothing was moved.
    """
    moves = _plan(root, fixes)
    journal = journal_folder / f"undo-{datetime.now().strftime('%Y%m%d-%H%M%S-%f')}.csv"
    journal_folder.mkdir(parents=True, exist_ok=True)
    write_table(journal, [_MOVES, *([_relative(source), _relative(target)] for source, target in moves)])
    for source, target in moves:
        _move(source, target)
    relabelled = sum(fix.action == "relabel" for fix in fixes)
    return journal, relabelled, len(fixes) - relabelled


def revert_fixes(journal: Path) -> int:
    """Moves pictures back, and returns their number. Moves that were not completed are skipped.

    Raises:
        UserError: The list is missing or invalid, or a picture can't be moved back; nothing was moved.
    """
    rows = _read_rows(journal, _MOVES)
    moves = [(Path(row["to"]), Path(row["from"])) for _, row in reversed(rows)]
    existing = [(source, target) for source, target in moves if os.path.lexists(source)]
    raise_line_errors(
        [
            f"{one_line(str(target))}: exists, so {one_line(str(source))} can't be moved back; rename it"
            for source, target in existing
            if os.path.lexists(target)
        ]
    )
    for source, target in existing:
        _move(source, target)
    return len(existing)


def _plan(root: Path, fixes: Sequence[Fix]) -> list[tuple[Path, Path]]:
    problems = []
    moves: list[tuple[Path, Path]] = []
    targets: set[Path] = set()
    sources: set[str] = set()
    removed = root.resolve().with_name(f"{root.resolve().name}-removed")
    for fix in fixes:
        name = one_line(fix.file)
        parts = PurePosixPath(fix.file).parts
        path = root / fix.file
        if not parts or ".." in parts or parts[0] == "/":
            problems.append(f"{name}: expected a path below {root}")
            continue
        if not path.is_file():
            problems.append(f"{name}: no such picture in {root}{_explain_encoding(fix.file)}")
            continue
        if fix.file in sources:
            problems.append(f"{name}: listed twice; keep one of the lines")
            continue
        sources.add(fix.file)
        target = removed.joinpath(*parts)
        if fix.action == "relabel":
            depth = 1 if _is_part(root, parts) else 0
            classes = find_class_folders(root.joinpath(*parts[:depth]))
            if fix.label not in classes:
                known = suggest(fix.label, list(classes))
                problems.append(f"{name}: no class {fix.label!r}{known}{_explain_encoding(fix.label)}")
                continue
            target = root.joinpath(*parts[:depth], classes[fix.label][0], *parts[depth + 1 :])
            if target == path:
                problems.append(f"{name}: is in class {fix.label} already; remove the line")
                continue
        target = _free(target, targets)
        targets.add(target)
        moves.append((path, target))
    raise_line_errors(problems)
    return moves


def _is_part(root: Path, parts: Sequence[str]) -> bool:
    """Returns whether the first folder of a path is train or val, and not a class."""
    names = {name for folders in PARTS.values() for name in folders}
    return len(parts) > 2 and parts[0] in names and bool(find_class_folders(root / parts[0]))


def _free(path: Path, planned: set[Path]) -> Path:
    """Returns the path, or one with a number in its name if it exists or is planned."""
    candidate = path
    number = 1
    while os.path.lexists(candidate) or candidate in planned:
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)


def _relative(path: Path) -> str:
    return str(path.absolute())


def _explain_encoding(name: str) -> str:
    """Returns the end of an error about an unknown name: what to do if its table is not in UTF-8."""
    is_utf8 = name == name.encode("utf-8", "replace").decode()
    return "" if is_utf8 else "; the table is not in UTF-8: save it as what Excel calls 'CSV UTF-8'"


def _read_rows(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Returns the rows of a CSV file with their line numbers, by column.

    Raises:
        UserError: The file is missing or can't be read, or lacks a column.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise UserError(f"{path}: can't read this list: {error.strerror}") from None
    tables = [read_table(data, delimiter) for delimiter in ",;\t"]
    rows = next((table for table in tables if table and set(columns) <= set(table[0])), tables[0])
    header = [name.strip() for name in rows[0]] if rows else []
    if missing := [name for name in columns if name not in header]:
        raise UserError(
            f"{path}: expected the columns {', '.join(columns)} in the first line, found no {missing[0]}"
        )
    return [
        (number, dict(zip(header, [*row, *[""] * len(header)], strict=False)))
        for number, row in enumerate(rows[1:], start=2)
        if any(cell.strip() for cell in row)
    ]
