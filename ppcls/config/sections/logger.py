"""``Global.loggers``: experiment trackers that receive the scalars of a run."""

from __future__ import annotations

from typing import Literal

from ppcls.config.base.fields import Spec


class LoggerSpec(Spec):
    """An experiment tracker."""

    @property
    def kind(self) -> str:
        """Name of the tracker in YAML, in lower case."""
        return type(self).__name__.lower()


class TensorBoard(LoggerSpec):
    """Writes event files for ``tensorboard --logdir``. Needs the package tensorboardX."""

    folder: str | None = None
    """Folder of the event files; default: `tensorboard` in `Global.output_dir`."""


class MLflow(LoggerSpec):
    """Records the run on an MLflow server. Needs the package mlflow or mlflow-skinny."""

    tracking_uri: str | None = None
    """Address of the server; default: the value of the environment variable MLFLOW_TRACKING_URI if it is set,
    else MLflow's default."""
    experiment: str = "ppcls"
    """Name of the experiment. It is created if it does not exist."""
    run_name: str | None = None
    """Name of the run; default: architecture and output folder."""


class WandB(LoggerSpec):
    """Records the run on Weights & Biases. Needs the package wandb."""

    project: str = "ppcls"
    """Name of the project."""
    entity: str | None = None
    """User or team that owns the project; default: the user who is logged in."""
    run_name: str | None = None
    """Name of the run; default: architecture and output folder."""
    mode: Literal["online", "offline"] | None = None
    """`online` sends the data to the server; `offline` writes the data to `Global.output_dir`, for a later
    `wandb sync`. Default: the value of the environment variable WANDB_MODE if it is set, else `online`."""
