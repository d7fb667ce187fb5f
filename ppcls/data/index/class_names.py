"""Names of the classes: a file of ``id name`` lines, as PaddleClas's ``class_id_map_file``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ppcls.config.class_folders import LABEL_LIST, list_class_folders
from ppcls.errors import UserError
from ppcls.files import write_text

__all__ = ["LABEL_LIST", "changed_class_names", "list_class_folders", "read_class_names", "write_class_names"]
_SHOWN = 10


def write_class_names(path: Path, names: Sequence[str]) -> None:
    """Writes names as lines of ``id name``, which `read_class_names` reads."""
    write_text(path, format_label_list(names))


def format_label_list(names: Sequence[str]) -> str:
    """Returns names as lines of ``id name``."""
    return "".join(f"{label} {name}\n" for label, name in enumerate(names))


def read_class_names(path: Path, class_num: int) -> tuple[str, ...]:
    """Reads the name of every class.

    Args:
        path: Lines of ``id name`` in any order; a name may contain spaces, empty lines are skipped.
        class_num: Number of classes of the model.

    Returns:
        [class_num] names, by class id.

    Raises:
        UserError: The file can't be read, has wrong lines (all of them, by number), or lacks a class.
    """
    names: dict[int, str] = {}
    problems: list[str] = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        identity, _, name = line.strip().partition(" ")
        wrong = _wrong_with(identity, name.strip(), names, class_num) if identity else None
        if wrong:
            problems.append(f"{path}, line {number}: {wrong}")
        elif identity:
            names[int(identity)] = name.strip()
    missing = [str(each) for each in range(class_num) if each not in names]
    if missing and not problems:
        more = ", …" if len(missing) > _SHOWN else ""
        problems = [
            f"{path}: names {len(names)} of {class_num} classes (Arch.class_num); "
            f"no line for class {', '.join(missing[:_SHOWN])}{more}"
        ]
    if problems:
        extra = [f"… and {len(problems) - _SHOWN} more lines"] if len(problems) > _SHOWN else []
        raise UserError("\n".join([*problems[:_SHOWN], *extra]))
    return tuple(names[each] for each in range(class_num))


def changed_class_names(path: Path, names: Sequence[str]) -> str:
    """Says which labels mean other classes than in a file that `write_class_names` wrote.

    Args:
        path: The file, which may be missing.
        names: [class_num], by label; none where they are not known.

    Returns:
        An empty text where none does, or the number of classes differs, which shows elsewhere.
    """
    if not path.is_file():
        return ""
    lines = _read(path).splitlines(), format_label_list(names).splitlines()
    if len(lines[0]) != len(lines[1]):
        return ""
    before, now = ([line.partition(" ")[2] for line in each] for each in lines)
    changes = [
        f"{label} was {old!r} and is {new!r}"
        for label, (old, new) in enumerate(zip(before, now, strict=True))
        if old != new
    ]
    return ", ".join([*changes[:_SHOWN], *(["…"] if len(changes) > _SHOWN else [])])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected lines of 'id name' (class_id_map_file)") from None
    except OSError as error:
        raise UserError(f"{path}: can't read this class_id_map_file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (class_id_map_file): {error.reason}") from None


def _wrong_with(identity: str, name: str, names: dict[int, str], class_num: int) -> str | None:
    if not (identity.isascii() and identity.isdecimal()):
        return f"expected 'id name', got {identity!r} as id"
    if not name:
        return f"expected 'id name', got no name for class {identity}"
    if int(identity) >= class_num:
        return f"class {int(identity)} is not in 0..{class_num - 1}; Arch.class_num is {class_num}"
    if int(identity) in names:
        return f"class {int(identity)} is named before, {names[int(identity)]!r}"
    return None
