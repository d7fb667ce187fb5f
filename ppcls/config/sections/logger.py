"""``Global.loggers``: experiment trackers that receive the scalars of a run."""

from __future__ import annotations

from typing import Literal

from ppcls.config.base.fields import Spec


class LoggerSpec(Spec):
    """An experiment tracker."""

    @property
    def kind(self) -> str:
        """The name in YAML."""
        return type(self).__name__.lower()


class TensorBoard(LoggerSpec):
    """Event files for ``tensorboard --logdir``. Needs the package tensorboardX."""

    folder: str | None = None
    """Folder of the event files; by default `tensorboard` in `Global.output_dir`."""


class MLflow(LoggerSpec):
    """A run on an MLflow server. Needs the package mlflow or mlflow-skinny."""

    tracking_uri: str | None = None
    """Address of the server; by default MLFLOW_TRACKING_URI or MLflow's own default."""
    experiment: str = "ppcls"
    """Name of the experiment, which is created if it is missing."""
    run_name: str | None = None
    """Name of the run; by default architecture and output folder."""


class WandB(LoggerSpec):
    """A run on Weights & Biases. Needs the package wandb."""

    project: str = "ppcls"
    """Name of the project."""
    entity: str | None = None
    """User or team; by default that of the login."""
    run_name: str | None = None
    """Name of the run; by default architecture and output folder."""
    mode: Literal["online", "offline"] | None = None
    """`offline` writes to `Global.output_dir`, for `wandb sync`; by default WANDB_MODE or online."""
