"""Minimal FastAPI server, with which ``ppcls serve`` is compared: ``python plain_server.py MODEL [--trust]``.

As in most examples, one of FastAPI's threads processes each request: it prepares the image, and runs the
model without batching. The server uses the same preparation and model as ``ppcls serve``.
"""

from __future__ import annotations

import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Annotated, Any


def main(model: str, trust: bool) -> None:
    """Serves a model on a free port. The first line of output contains the address."""
    import uvicorn
    from fastapi import Body, FastAPI

    from ppcls.deploy.models.source import find_source
    from ppcls.deploy.predictor import Predictor

    source = find_source(Path(model), trust=trust)
    predictor = Predictor(source)
    app = FastAPI()
    # Several threads may call onnxruntime at the same time, but not Paddle.
    turn = Lock() if source.needs_paddle else nullcontext()

    # The annotation uses objects that are local to this function, so it cannot be a string.
    def predict(image: Any) -> dict[str, Any]:
        prepared = predictor.prepare(image)
        with turn:
            (output,) = predictor.run([prepared])
        return {"results": [predictor.interpret(output).as_tree()]}

    predict.__annotations__["image"] = Annotated[bytes, Body(media_type="application/octet-stream")]
    app.post("/predict")(predict)
    # asyncio turns off Nagle's algorithm, which delays responses by 40 ms, only if the protocol is given.
    with socket.socket(proto=socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        sys.stdout.write(f"plain FastAPI is served on http://127.0.0.1:{bound.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[bound])


if __name__ == "__main__":
    # Remove this folder from the path, because its modules would hide others of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    main(sys.argv[1], trust="--trust" in sys.argv[2:])
