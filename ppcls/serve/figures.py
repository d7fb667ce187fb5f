"""What a server counts, for Prometheus to fetch (text exposition format 0.0.4)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ppcls.serve.room import Room

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Figures:
    """Counters of one server.

    Args:
        images: What is in work.

    Attributes:
        requests: By status.
        images: Answered.
        seconds: Of a request, from its headers to its answer.
        batch: Images of a batch.
        model_seconds: Of a batch in the model.
    """

    def __init__(self, images: Room) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "ppcls_requests", "Requests for predictions, by status.", ["status"], registry=registry
        )
        self.images = Counter("ppcls_images", "Images predicted.", registry=registry)
        self.seconds = Histogram(
            "ppcls_request_seconds", "Time to answer a request.", buckets=_SECONDS, registry=registry
        )
        self.batch = Histogram("ppcls_batch_images", "Images of a batch.", buckets=_SIZES, registry=registry)
        self.model_seconds = Histogram(
            "ppcls_model_seconds", "Time of a batch in the model.", buckets=_SECONDS, registry=registry
        )
        waiting = Gauge("ppcls_images_in_work", "Images taken and not answered yet.", registry=registry)
        waiting.set_function(lambda: images.taken)

    def text(self) -> bytes:
        """Returns all of them."""
        return generate_latest(self._registry)
