"""Writes the model card of a bundle, ``README.md``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ppcls.commands import command_line
from ppcls.deploy.bundle.golden import MeasuredDifferences
from ppcls.deploy.bundle.schema import Bundle
from ppcls.deploy.models.description import ModelDescription
from ppcls.errors import counted
from ppcls.files import escape_controls, write_text
from ppcls.version import __version__

_SHOWN = 20  # number of classes that the card lists
_TRANSFORMS_HINT = "`PreProcess` in `inference.yml`"


def write_card(
    folder: Path,
    bundle: Bundle,
    description: ModelDescription,
    differences: MeasuredDifferences,
    runners: Sequence[str],
) -> None:
    """Writes the model card.

    Raises:
        OSError: The file cannot be written.
    """
    lines = [*_describe(bundle, description, differences), *_explain_use(bundle, runners)]
    write_text(folder / "README.md", "\n".join(lines) + "\n")


def _describe(
    bundle: Bundle, description: ModelDescription, differences: MeasuredDifferences
) -> Iterator[str]:
    model = bundle.model
    classes = ", ".join(_escape(name) for name in bundle.classes[:_SHOWN])
    more = "" if len(bundle.classes) <= _SHOWN else ", …"
    yield f"# {_escape(model.name)}"
    yield ""
    yield f"An image classifier, written by ppcls {__version__}."
    yield ""
    yield "| | |"
    yield "| --- | --- |"
    yield f"| classes | {len(bundle.classes):,}: {classes}{more} |"
    yield (
        f"| input | `{model.input}`: RGB pixels [N, height, width, 3] uint8 of any size, upright. The model "
        f"resizes, crops and normalizes them ({_TRANSFORMS_HINT}) |"
    )
    shape = f"[N, {len(bundle.classes)}]"
    yield f"| output | `{model.probabilities}`: {shape} float32, after {model.activation} |"
    temperature = f"temperature {model.temperature:g}" if model.temperature != 1 else "not calibrated"
    yield f"| precision | {model.precision}; {temperature} |"
    rule = bundle.rejection
    if rule is not None:
        limits = rule.threshold if isinstance(rule.threshold, tuple) else (rule.threshold,)
        limit = f"{min(limits):.4g}" if len(set(limits)) == 1 else f"{min(limits):.4g} to {max(limits):.4g}"
        yield f"| unknown | images whose score `{rule.score}` is below {limit} |"
    comparison = None if description.Export is None else description.Export.comparison
    if comparison is not None and comparison.exported_accuracy is not None:
        yield (
            f"| accuracy | {comparison.exported_accuracy:.4f} on "
            f"{counted(comparison.images, 'evaluation image')} (trained model: "
            f"{comparison.trained_accuracy:.4f}) |"
        )
    trained = "not measured" if differences.trained is None else f"{differences.trained:.1e}"
    yield (
        f"| largest difference of a probability | {trained} from the trained model, "
        f"{differences.probabilities:.1e} between engines, on {counted(len(bundle.golden), 'golden sample')} "
        "|"
    )
    yield ""
    yield (
        "The model was measured only on images like those of its evaluation set. Do not use it for decisions "
        "about people without a measurement on your own images. The images in `golden/` are from the "
        "evaluation set, or were chosen for this bundle; their licence applies, too."
    )


def _explain_use(bundle: Bundle, runners: Sequence[str]) -> Iterator[str]:
    yield ""
    yield "## Use"
    yield ""
    yield "    ppcls verify .              # runs the golden samples, and names the first stage that differs"
    yield f"    {command_line('infer', '--model', '.', bundle.golden[0].image)}"
    yield "    ppcls serve --model ."
    if runners:
        yield ""
        names = ", ".join(f"`runners/{name}`" for name in runners)
        yield f"Programs without ppcls are in {names}; each has a README."


def _escape(text: str) -> str:
    """Returns a name as text in a table of Markdown."""
    return escape_controls(text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")
