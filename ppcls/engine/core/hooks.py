"""Hooks of a run.

`StepHooks` are called around the phases of a step. They measure and report, and never change the training.
`RunHook` is the base class of hooks that users write. They are called after updates, evaluations and
checkpoints.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from ppcls.engine.core.settings import split_hook
from ppcls.errors import UserError
from ppcls.registry import import_user_module, suggest
from ppcls.report.record import EvalRecord

if TYPE_CHECKING:
    from ppcls.engine.loop import Run

Phase = Literal["data wait", "forward", "backward", "all-reduce", "optimizer"]
_NO_CONTEXT = nullcontext()


class StepHooks:
    """Hooks around the phases of a step. This class does nothing, for steps without measurements."""

    def __call__(self, phase: Phase) -> AbstractContextManager[None]:
        """Returns the context in which one phase of the current step runs."""
        return _NO_CONTEXT


NO_HOOKS = StepHooks()


class RunHook:
    """Base class of users' hooks: ``Global.hooks`` and ``fit(hooks=[…])``. Its methods do nothing.

    The methods are called on all ranks, in the same order; ``run.state.runtime.is_main`` is True on rank 0
    only. An exception in a method ends the run.
    """

    def on_update(self, run: Run) -> None:
        """Called after each optimizer update, between two steps.

        Args:
            run: The run. ``run.state`` has the model, the optimizer, ``update`` and ``epoch``;
                ``run.log(text)`` writes a line to the log.
        """

    def on_evaluation(self, run: Run, record: EvalRecord) -> None:
        """Called after each evaluation.

        Args:
            record: Loss, metrics, and whether this is the best evaluation so far.
        """

    def on_checkpoint(self, run: Run, names: tuple[str, ...]) -> None:
        """Called after each checkpoint.

        Args:
            names: Names of the checkpoint in the output folder, such as ``("latest", "best_model")``.
        """

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Called once at the end of a run.

        Args:
            error: The exception that ended the run, such as `SignalExit`; None if the run is complete.
        """


ENTRY_POINTS = "ppcls.hooks"


def load_hooks(items: Sequence[Any]) -> list[RunHook]:
    """Imports and creates the hooks of the config.

    Args:
        items: The items of ``Global.hooks``. Each is ``module:Class``, or the name of an entry point of the
            group ``ppcls.hooks``, or a mapping from one of these to the parameters of the hook.

    Raises:
        UserError: A hook does not exist, is not a subclass of `RunHook`, or does not accept its parameters.
    """
    hooks = []
    for name, parameters in map(split_hook, items):
        hook_class = _find_hook(name)
        if not isinstance(hook_class, type) or not issubclass(hook_class, RunHook):
            raise UserError(
                f"Global.hooks: expected {name} to be a subclass of ppcls.RunHook, got {hook_class!r}"
            )
        try:
            inspect.signature(hook_class).bind(**parameters)
        except TypeError as error:
            raise UserError(f"Global.hooks: {name} does not accept these parameters: {error}") from None
        hooks.append(hook_class(**parameters))
    return hooks


def _find_hook(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if colon:
        imported = import_user_module(module, "Global.hooks")
        if not hasattr(imported, attribute):
            similar = suggest(
                attribute, [key for key, value in vars(imported).items() if isinstance(value, type)]
            )
            raise UserError(f"Global.hooks: the module '{module}' has no class '{attribute}'{similar}")
        return getattr(imported, attribute)
    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in installed:
        hint = (
            suggest(name, sorted(installed))
            or f"; no installed package has entry points of the group {ENTRY_POINTS}"
        )
        raise UserError(
            f"Global.hooks: no installed hook '{name}'{hint}; to use a class of a module, write module:Class"
        )
    return installed[name].load()


@dataclass(frozen=True)
class ProfileWindow:
    """Range of updates to profile. Update 0 is the first one after the run starts or resumes.

    Attributes:
        start: First update, 0..stop-1.
        stop: First update after the window.
    """

    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


def read_profile_window(text: str) -> ProfileWindow:
    """Parses ``START:STOP``.

    Raises:
        UserError: The text does not have this form, or ``START`` is not less than ``STOP``.
    """
    match = re.fullmatch(r"(\d+):(\d+)", text, re.ASCII)
    window = ProfileWindow(int(match[1]), int(match[2])) if match else None
    if window is None or window.start >= window.stop:
        raise UserError(
            f"--profile: expected START:STOP, two whole numbers with START < STOP, got '{text}'; "
            "--profile 10:20 profiles ten updates after the first ten"
        )
    return window
