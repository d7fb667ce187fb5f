"""Models of a server, which can be loaded, replaced and unloaded while the server runs."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.files import real_path
from ppcls.serve.limits import RequestError
from ppcls.serve.metrics import ServerMetrics
from ppcls.serve.pools import TimedPool
from ppcls.serve.service import BatchingOptions, InferenceService, build, warm_up

_T = TypeVar("_T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class LoadableModels:
    """Models that clients can load.

    Attributes:
        folder: Folder whose subfolders are the models.
        trust: Whether these models may run code and use paths that they name.
        max_models: Maximum number of loaded models; None for no limit. If another model is loaded, the one
            that was not used for the longest time is unloaded.
    """

    folder: Path
    trust: bool = False
    max_models: int | None = None


def _without_folder(text: str, folder: Path) -> str:
    """Returns an error about a model without the folder of models.

    Clients name models, and need not know where the server keeps them.
    """
    for place in (real_path(folder), folder):  # the real path can end with the other one
        text = text.replace(f"{place}/", "")
    return text


def _free_memory() -> None:
    """Returns the memory of unloaded models to the operating system.

    Without this, each of them would keep about 100 MiB for a long time: a predictor is part of reference
    cycles, and the C library keeps freed memory.
    """
    gc.collect()
    with suppress(AttributeError, OSError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


class ServedModels:
    """The models of a server. Requests without a model name use the first model.

    All models share one thread, so only one batch is computed at a time. Batches that warm up a new model
    take turns with those of requests.

    Args:
        predictors: Initial models, keyed by name.
        worker: Pool of one thread, in which all models run.
        batching: Options for batches.
        loadable: Further models that can be loaded; None for none.
        loader: Pool of one thread, in which these models are loaded; None for the worker. On a GPU, memory
            may not be allocated while another thread captures a CUDA graph, so only the worker can load
            models.

    Attributes:
        metrics: Metrics of the server.
        services: Loaded models, keyed by name.
    """

    def __init__(
        self,
        predictors: Mapping[str, Predictor],
        worker: TimedPool,
        batching: BatchingOptions,
        loadable: LoadableModels | None = None,
        loader: TimedPool | None = None,
    ) -> None:
        self.metrics = ServerMetrics()
        self._loader = loader or worker
        self._worker = worker
        self._batching = batching
        self._loadable = loadable
        self._uses = itertools.count()
        self._last_use: dict[str, int] = {}  # number of the last use of each model
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
        for pool in (self._loader, self._worker):
            pool.shutdown(cancel_futures=True)

    def find(self, name: str | None) -> InferenceService:
        """Returns the model called ``name``, or the first model if ``name`` is None.

        Raises:
            RequestError: There is no model with this name.
        """
        if name is None:
            name = next(iter(self.services))
        if name not in self.services:
            raise RequestError(404, f"model: expected one of {', '.join(self.services)}, got {name[:80]!r}")
        self._last_use[name] = next(self._uses)
        return self.services[name]

    async def load(self, name: str) -> InferenceService:
        """Loads the model in the subfolder ``name``, and returns it.

        If a model with this name is loaded already, it is replaced when the new model is ready.

        Raises:
            RequestError: The server has no folder of models, or the model cannot be loaded.
        """
        if self._loadable is None:
            raise RequestError(403, "this server cannot load models; start it with --models-folder")
        path = self._loadable.folder / name
        trust = self._loadable.trust
        if not NAME.fullmatch(name) or not path.is_dir() or path.is_symlink():
            raise RequestError(
                404, f"{name[:80]!r}: --models-folder has no such subfolder; links are ignored"
            )
        async with self._changing:
            try:
                predictor = await self._run_in(self._loader, lambda: build(find_source(path, trust=trust)))
                for run in warm_up(predictor, self._batching.max_batch):
                    await self._run_in(self._worker, run)
                await self._run_in(self._loader, predictor.source.check_unchanged)
            except UserError as error:
                raise RequestError(422, _without_folder(str(error), self._loadable.folder)) from None
            before = self.services.get(name)
            self.services[name] = service = self._make_service(name, predictor)
            service.start()
            if before is not None:
                await before.drain()
                await before.stop()
                before = None
                await self._run_in(self._loader, _free_memory)
            self._last_use[name] = next(self._uses)
            await self._unload_unused(self._loadable.max_models, name)
            return service

    async def _unload_unused(self, max_models: int | None, loaded: str) -> None:
        """Unloads the models that were not used for the longest time, if there are too many.

        The first model stays, because requests without a name use it.

        Args:
            max_models: Maximum number of models; None for no limit.
            loaded: Name of the model that was just loaded.
        """
        first = next(iter(self.services))
        while max_models is not None and len(self.services) > max_models:
            others = [name for name in self.services if name not in (first, loaded)]
            if not others:
                return
            await self._remove(min(others, key=lambda name: self._last_use.get(name, -1)))

    async def _remove(self, name: str) -> None:
        service = self.services.pop(name)
        self._last_use.pop(name, None)
        await service.drain()
        await service.stop()
        self.metrics.remove_model(name)
        del service
        await self._run_in(self._loader, _free_memory)

    async def unload(self, name: str) -> None:
        """Unloads a model after all its accepted requests are answered.

        Raises:
            RequestError: The model does not exist or is the last one, or the server has no folder of models.
        """
        if self._loadable is None:
            raise RequestError(403, "this server cannot unload models; start it with --models-folder")
        async with self._changing:
            self.find(name)
            if len(self.services) == 1:
                raise RequestError(409, f"{name}: the last model of a server cannot be unloaded")
            await self._remove(name)

    def _make_service(self, name: str, predictor: Predictor) -> InferenceService:
        return InferenceService(name, predictor, self._worker, self._batching, self.metrics)

    async def _run_in(self, pool: TimedPool, function: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(pool, function)
