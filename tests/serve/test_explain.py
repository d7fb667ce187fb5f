"""Heat maps of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from running import Running
from small_classifier import write_checkpoint, write_config

from ppcls.cli.infer import infer
from ppcls.deploy.models.source import find_source
from ppcls.errors import UserError
from ppcls.serve.service import load


def explain(server: Running, query: str, *images: bytes) -> httpx.Response:
    with server.client() as client:
        return client.post(f"/explain{query}", files=[("a", ("a", each)) for each in images])


def test_heat_map_equals_that_of_infer(
    server: Running, tree: dict[str, Any], images: list[bytes], tmp_path: Path
) -> None:
    with server.client() as client:
        answer = client.post("/predict", files=[("a", ("a", images[0]))]).json()
    best = answer["results"][0]["predictions"][0]["class_id"]
    (tmp_path / "image.png").write_bytes(images[0])
    config = write_config(tmp_path / "config.yaml", tree)
    folder = tmp_path / "heat"
    assert infer(["-c", str(config), "--explain", str(folder), str(tmp_path / "image.png")]) == 0
    found = explain(server, f"?class_id={best}", images[0])
    assert (found.status_code, found.headers["content-type"]) == (200, "image/png")
    pixels = cv2.imdecode(np.frombuffer(found.content, np.uint8), cv2.IMREAD_COLOR)
    expected = cv2.imread(str(folder / "image.png"))
    assert pixels.shape == expected.shape
    # The threads of two processes may add numbers in another order.
    assert np.abs(pixels.astype(int) - expected).max() <= 2


@pytest.mark.parametrize(
    ("query", "count", "status", "reason"),
    [
        ("", 1, 400, "class_id: expected one integer from 0 to 2, got ''"),
        ("?class_id=3", 1, 400, "class_id: expected one integer from 0 to 2, got '3'"),
        ("?class_id=0", 2, 400, "expected one image, got 2"),
        ("?class_id=0&model=no", 1, 404, "model: expected one of"),
        ("?class_id=0", 0, 400, "the request contains no image"),
    ],
)
def test_invalid_request_for_a_heat_map_is_explained(
    server: Running, images: list[bytes], query: str, count: int, status: int, reason: str
) -> None:
    found = explain(server, query, *images[:count]) if count else explain_empty_body(server, query)
    assert found.status_code == status
    assert reason in found.json()["error"]


def explain_empty_body(server: Running, query: str) -> httpx.Response:
    with server.client() as client:
        return client.post(f"/explain{query}", content=b"", headers={"Content-Type": "image/png"})


def test_heat_map_of_broken_image_is_an_error(server: Running) -> None:
    found = explain(server, "?class_id=0", b"no image")
    assert (found.status_code, found.json()["error"]) == (422, "not an image that can be decoded")


@pytest.fixture
def files(tree: dict[str, Any], tmp_path: Path) -> dict[str, bytes]:
    """Files of a checkpoint."""
    weights = Path(tree["Global"]["pretrained_model"]).read_bytes()
    config = write_config(tmp_path / "c.yaml", tree).read_bytes()
    return {"config.yaml": config, "model.safetensors": weights}


@pytest.mark.hostile
def test_weights_and_heat_maps_are_those_of_the_checkpoint_that_was_found(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    found = write_checkpoint(tmp_path / "run", files).resolve()
    source = find_source(tmp_path / "run")
    assert write_checkpoint(tmp_path / "run", files).resolve() != found, "training continues"
    assert load(source, 1).source.file == found


@pytest.mark.hostile
def test_load_of_a_checkpoint_that_was_replaced_is_an_error(files: dict[str, bytes], tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "run", files).resolve()
    other = write_checkpoint(tmp_path / "other", {**files, "label_list.txt": b"0 other\n"}).resolve()
    source = find_source(folder)
    folder.rename(tmp_path / "removed")
    other.rename(folder)
    with pytest.raises(UserError, match="changed after it was found; load the model again"):
        load(source, 1)
