"""The base class of loggers, which send the scalars of a run to experiment trackers.

A logger is a section of the config, an item of ``Global.loggers``. `Logger.build` returns its `Tracker`.
``ppcls.report.background`` calls both.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ppcls.config.base.component import Component
from ppcls.config.base.tree import leaves
from ppcls.config.base.yaml import parse_yaml
from ppcls.files import write_text
from ppcls.registry import LOGGERS

RUN_IDS = "loggers.json"
_MAX_LENGTH = 500  # characters per value of the config


@dataclass(frozen=True)
class TrackedRun:
    """Properties of a run that trackers use.

    Attributes:
        name: Name of the run.
        output_dir: Output folder of the run.
        config: The config as YAML text.
        resumed_from: Number of optimizer updates at which the run resumes; None for a new run.
    """

    name: str
    output_dir: Path
    config: str = ""
    resumed_from: int | None = None


class Tracker(Protocol):
    """Interface of experiment trackers. An exception in a method stops only the tracker, not the run."""

    def log(self, values: dict[str, float], update: int) -> None:
        """Sends finite values.

        Args:
            values: Values, keyed by tag, such as ``train/loss``.
            update: Number of optimizer updates.
        """

    def finish(self, failed: bool) -> None:
        """Ends the log.

        Args:
            failed: Whether the run ended with an error.
        """


class Logger(Component, registry=LOGGERS):
    """Experiment tracker that receives the scalars and the config of a run.

    Attributes:
        package: Package that the tracker needs; "" for none.
        extra: Extra of ppcls that installs the package; "" if the user installs it.
        blocks: Whether calls of the tracker may wait, for example for a server. They then run in a thread.
    """

    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    blocks: ClassVar[bool] = True

    @classmethod
    def registered_name(cls) -> str:
        """Returns the name of the tracker in YAML: the name of the class, in lower case."""
        return cls.__name__.lower()

    def build(self, run: TrackedRun) -> Tracker:
        """Starts the tracker, and returns it. If it `blocks`, it is called in the thread of the tracker."""
        raise NotImplementedError(f"{self.kind} does not define its tracker")

    def abandon(self) -> None:
        """Prevents that a tracker that hangs delays the end of the process. The default does nothing.

        The run calls this method at its end, in its main thread. The method must not wait. It is needed only
        for a library that waits for its server when Python ends.
        """


class RunIds:
    """File with the ids of a run in trackers. A resumed run uses it to continue the same runs.

    Args:
        run: The run. For a new run, existing ids are ignored.
    """

    _lock = threading.Lock()  # one thread per tracker

    def __init__(self, run: TrackedRun) -> None:
        self._path = run.output_dir / RUN_IDS
        self._resumed = run.resumed_from is not None

    def read(self, kind: str) -> str | None:
        """Returns the id of the run in a tracker; None if the run is new or has no id."""
        with self._lock:
            return self._load().get(kind) if self._resumed else None

    def write(self, kind: str, name: str) -> None:
        """Stores the id of the run in a tracker."""
        with self._lock:
            write_text(self._path, json.dumps({**self._load(), kind: name}) + "\n")

    def _load(self) -> dict[str, str]:
        try:
            ids = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return ids if isinstance(ids, dict) else {}


def read_config_text(config: str) -> dict[str, Any]:
    """Returns the values of a YAML config; an empty dict for empty text."""
    return parse_yaml(config, "config.yaml") or {}


def flatten_config(config: str) -> dict[str, str]:
    """Returns the values of a YAML config, keyed by path, such as ``{"Global.epochs": "90", …}``.

    Values are cut to 500 characters.
    """
    return {path: str(value)[:_MAX_LENGTH] for path, value in leaves(read_config_text(config)) if path}
