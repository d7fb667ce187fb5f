"""Models of a server, which can be loaded, replaced and unloaded while the server runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.serve.limits import RequestError
from ppcls.serve.metrics import ServerMetrics
from ppcls.serve.pools import TimedPool
from ppcls.serve.service import BatchingOptions, InferenceService, load

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ServedModels:
    """The models of a server. Requests without a model name use the first model.

    All models share one thread, so only one batch is computed at a time. While a model is being loaded, no
    batch of any model is computed.

    Args:
        predictors: Initial models, keyed by name.
        worker: Pool of one thread, in which all models are loaded and run.
        batching: Options for batches.
        folder: Folder whose subfolders are further models that can be loaded.
        trust: Whether these models may run code and use paths that they name.

    Attributes:
        metrics: Metrics of the server.
        services: Loaded models, keyed by name.
    """

    def __init__(
        self,
        predictors: Mapping[str, Predictor],
        worker: TimedPool,
        batching: BatchingOptions,
        folder: Path | None = None,
        *,
        trust: bool = False,
    ) -> None:
        self.metrics = ServerMetrics()
        self._worker = worker
        self._batching = batching
        self._folder = folder
        self._trust = trust
        self._changing = asyncio.Lock()
        self.services = {name: self._make_service(name, predictor) for name, predictor in predictors.items()}

    @property
    def ready(self) -> bool:
        """Whether the server accepts requests."""
        return all(service.ready for service in self.services.values())

    def start(self) -> None:
        """Starts to process requests for all models."""
        for service in self.services.values():
            service.start()

    async def stop(self) -> None:
        """Stops all models, and waits until their threads have ended."""
        for service in self.services.values():
            await service.stop()
        self._worker.shutdown(cancel_futures=True)

    def find(self, name: str | None) -> InferenceService:
        """Returns the model called ``name``, or the first model if ``name`` is None.

        Raises:
            RequestError: There is no model with this name.
        """
        if name is None:
            return next(iter(self.services.values()))
        if name not in self.services:
            raise RequestError(404, f"model: expected one of {', '.join(self.services)}, got {name[:80]!r}")
        return self.services[name]

    async def load(self, name: str) -> InferenceService:
        """Loads the model in the subfolder ``name``, and returns it.

        If a model with this name is loaded already, it is replaced when the new model is ready.

        Raises:
            RequestError: The server has no folder of models, or the model cannot be loaded.
        """
        if self._folder is None:
            raise RequestError(403, "this server cannot load models; start it with --models-folder")
        path = self._folder / name
        if not NAME.fullmatch(name) or not path.is_dir() or path.is_symlink():
            raise RequestError(
                404, f"{name[:80]!r}: --models-folder has no such subfolder; links are ignored"
            )
        async with self._changing:
            try:
                predictor = await self._in_worker(
                    lambda: load(find_source(path, trust=self._trust), self._batching.max_batch)
                )
            except UserError as error:
                raise RequestError(422, str(error)) from None
            before = self.services.get(name)
            self.services[name] = service = self._make_service(name, predictor)
            service.start()
            if before is not None:
                await before.drain()
                await before.stop()
            return service

    async def unload(self, name: str) -> None:
        """Unloads a model after all its accepted requests are answered.

        Raises:
            RequestError: The model does not exist or is the last one, or the server has no folder of models.
        """
        if self._folder is None:
            raise RequestError(403, "this server cannot unload models; start it with --models-folder")
        async with self._changing:
            service = self.find(name)
            if len(self.services) == 1:
                raise RequestError(409, f"{name}: the last model of a server cannot be unloaded")
            del self.services[name]
            await service.drain()
            await service.stop()
            self.metrics.remove_model(name)

    def _make_service(self, name: str, predictor: Predictor) -> InferenceService:
        return InferenceService(name, predictor, self._worker, self._batching, self.metrics)

    async def _in_worker(self, function: Callable[[], Predictor]) -> Predictor:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)
