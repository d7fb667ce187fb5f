"""``ppcls dataset audit``: finds duplicates, suspicious labels and other problems of a folder of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ppcls.cli.arguments.options import Exclusive, argument, option
from ppcls.cli.command import write_output
from ppcls.cli.dataset_files import check_outside, dataset_command, progress_bars
from ppcls.cli.shared_options import Device, trust_option
from ppcls.commands import command_line
from ppcls.errors import UserError, counted
from ppcls.files import one_line

if TYPE_CHECKING:
    from ppcls.data.index.files import FileIndex
    from ppcls.dataset_tools.audit import Stages
    from ppcls.dataset_tools.image_features import ImageModel

MODEL = "EfficientNet_lite0"
_MODE = Exclusive()
_SIZED = 100  # pictures whose headers are read for the default image size
_STEP = 32
_SMALLEST = 64


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Find duplicates, suspicious labels, outliers, small classes and series of pictures.

    The command changes no picture. It writes a gallery (audit.html), a table of all findings (audit.csv) and
    a list of suggested fixes (fixes.csv). Delete the lines of fixes.csv that you do not confirm, and apply
    the others with --fix.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset audit pictures/ --out audit",
        "ppcls dataset audit pictures/ --fix audit/fixes.csv",
        "ppcls dataset audit pictures/ --undo audit/undo-20260701-120000-000000.csv",
    )

    source: Path = argument("folder with one subfolder per class, or with the subfolders train and val")
    out: Path = option(Path("audit"), "folder for the results")
    model: str = option(
        MODEL,
        "model that computes features of the pictures: an architecture with published weights, or a run",
        metavar="MODEL",
    )
    image_size: int | None = option(
        None,
        "side of the images for the model in pixels (default: that of the model, less for small pictures)",
        ge=32,
    )
    device: Device | None = option(None, "device to run on: auto, gpu or cpu")
    fix: Path | None = option(
        None,
        "instead of an audit, move or relabel the pictures that are listed in this CSV file",
        metavar="LIST",
        exclusive=_MODE,
    )
    undo: Path | None = option(
        None, "instead of an audit, revert the changes of --fix", metavar="LIST", exclusive=_MODE
    )
    follow_links: bool = option(
        False, "follow symbolic links that point outside the folder, and use the images there"
    )
    trust: bool = trust_option()


@dataset_command("audit", AuditOptions)
def audit(options: AuditOptions) -> None:
    """Audits a folder, or applies or reverts fixes."""
    check_outside(options.out, options.source)
    if options.undo is not None:
        from ppcls.audit.fixes import revert_fixes

        write_output(f"{options.source}: moved {counted(revert_fixes(options.undo), 'picture')} back\n")
        return
    if options.fix is not None:
        _apply(options, options.fix)
        return
    from ppcls.audit.files import FIXES, GALLERY, TABLE, summarize, write_audit
    from ppcls.audit.images import read_pixels
    from ppcls.dataset_tools.audit import audit_pictures, find_pictures
    from ppcls.runtime.hardware import usable_cores

    if options.out.exists() and not options.out.is_dir():
        raise UserError(f"--out {options.out}: expected a folder, found a file")
    source = find_pictures(options.source, follow_links=options.follow_links)
    model = find_audit_model(
        options.model, source.index, options.image_size, options.device, trust=options.trust
    )
    options.out.mkdir(parents=True, exist_ok=True)
    with audit_progress() as stages:
        result = audit_pictures(source, model, options.out, usable_cores(), stages)
    write_audit(
        result, str(options.source), options.out, lambda position: read_pixels(source.index, position)
    )
    write_output(f"{options.source}: {summarize(result)}\n")
    for note in result.notes:
        write_output(f"{note}\n")
    suspicious = result.of_kind("label")[:10]
    for rank, finding in enumerate(suspicious, start=1):
        (position,) = finding.positions
        write_output(
            f"suspicious label {rank}: {one_line(result.pictures.files[position])}: "
            f"{one_line(finding.text)}\n"
        )
    write_output(
        f"gallery: {options.out / GALLERY}; all findings: {options.out / TABLE}\n"
        f"to apply suggestions, delete the wrong lines of {options.out / FIXES}, then run: "
        f"{command_line('dataset', 'audit', options.source, '--fix', options.out / FIXES)}\n"
    )


def _apply(options: AuditOptions, fixes: Path) -> None:
    from ppcls.audit.fixes import apply_fixes, read_fixes
    from ppcls.data.index.class_folders import PARTS, read_metadata

    for folder in (options.source, *(options.source / name for names in PARTS.values() for name in names)):
        if (metadata := read_metadata(folder)) is not None:
            raise UserError(
                f"--fix moves pictures to other folders, but {metadata.file} has the labels; change them "
                f"there as {fixes} suggests"
            )
    journal, relabelled, removed = apply_fixes(options.source, read_fixes(fixes), options.out)
    write_output(
        f"{options.source}: {counted(relabelled, 'picture')} moved to other classes, {removed} moved to "
        f"{options.source.resolve().name}-removed; to revert: "
        f"{command_line('dataset', 'audit', options.source, '--undo', journal)}\n"
    )


def find_audit_model(
    name: str,
    index: FileIndex,
    image_size: int | None = None,
    device: Device | None = None,
    *,
    trust: bool = False,
) -> ImageModel:
    """Returns the model that computes features.

    Args:
        name: Architecture with published weights, or a run.
        index: The pictures.
        image_size: Side of the images in pixels; None for a size that suits the pictures.
        device: Device; None for that of the model's config.
        trust: Whether the model may import modules that its config names.

    Raises:
        UserError: There is no such model.
    """
    from ppcls.cli.short_options import set_image_size
    from ppcls.config.base.overrides import Override
    from ppcls.dataset_tools.image_features import find_image_model

    on_device = [] if device is None else [Override.of_value("Global.device", device)]
    model = find_image_model(name, on_device, trust=trust)
    tree = model.config.model_dump(mode="json")
    side = image_size or min(int(model.config.Global.image_shape[1]), _usual_side(index))
    assert model.config.Infer is not None  # checked by find_image_model
    tree["Infer"]["transforms"] = [
        {op.kind: op.model_dump(mode="json")} for op in model.config.Infer.transforms
    ]
    sizes = [Override.of_value(key, value) for key, value in set_image_size(tree, side).items()]
    return find_image_model(
        name,
        [*on_device, *(each for each in sizes if each.path.startswith(("Infer", "Global")))],
        trust=trust,
    )


def _usual_side(index: FileIndex) -> int:
    """Returns a multiple of 32 that is at least the median side of the pictures, and at least 64."""
    import numpy as np
    from PIL import Image

    sides = []
    for position in np.linspace(0, len(index) - 1, min(len(index), _SIZED)).astype(int).tolist():
        try:
            with Image.open(index.path(position)) as image:
                sides.append(min(image.size))
        except (OSError, ValueError, Image.DecompressionBombError):
            continue  # listed later, when all pictures are read
    typical = float(np.median(sides)) if sides else 0.0
    return max(_SMALLEST, _STEP * int(np.ceil(typical / _STEP)))


@contextmanager
def audit_progress() -> Iterator[Stages]:
    """Returns a context in which progress bars show the stages of an audit."""
    with progress_bars() as bars:

        def start(stage: str, total: int) -> Callable[[int], None]:
            task = bars.add_task(stage, total=total)
            return lambda pictures: bars.advance(task, pictures)

        yield start
        for task in bars.tasks:  # unreadable pictures do not advance a stage
            bars.update(task.id, completed=task.total)
