from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import needs_chromium, opened_server
from running import Running, running
from small_classifier import write_config
from small_embedding import SIZE, embedding_tree, write_model

from ppcls.config.load import validate
from ppcls.deploy.predictor import Predictor


@pytest.fixture(scope="module")
def embedding_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tree = embedding_tree(tmp_path_factory.mktemp("model") / "model.safetensors")
    write_model(tree)
    return tree


@pytest.fixture(scope="module")
def embedding_server(embedding_config: dict[str, Any], folder: Path) -> Iterator[Running]:
    weights = Path(embedding_config["Global"]["pretrained_model"])
    with running(folder, "-c", write_config(weights.with_name("config.yaml"), embedding_config)) as server:
        yield server


def test_server_returns_embeddings(
    embedding_server: Running, embedding_config: dict[str, Any], images: list[bytes]
) -> None:
    with embedding_server.client() as client:
        files = [("image", ("a", image)) for image in images[:3]]
        answer = client.post("/predict", files=files)
        rejected = client.post("/predict", files=files, params={"topk": 1})
        health = client.get("/health").json()
    assert answer.status_code == 200
    found = np.array([result["embedding"] for result in answer.json()["results"]])
    expected = Predictor(validate(embedding_config, "test")).embed(images[:3])
    np.testing.assert_allclose(found, np.stack([embedding.vector for embedding in expected]), atol=1e-5)
    assert health["embedding_size"] == SIZE
    assert "classes" not in health
    error = {"error": "topk: this model returns embeddings, not classes"}
    assert (rejected.status_code, rejected.json()) == (400, error)


@needs_chromium
def test_page_shows_the_first_values(embedding_server: Running, images: list[bytes]) -> None:
    with opened_server(embedding_server) as page:
        page.wait_for_function("document.getElementById('model').textContent")
        assert page.locator("#model").inner_text().startswith("MobileNetV3_small_x0_35, embeddings; images")
        page.locator("#file").set_input_files({"name": "a", "mimeType": "image/png", "buffer": images[0]})
        shown = page.locator("article p", has_text="Embedding: ")
        shown.wait_for()
        assert len(shown.inner_text().split(", ")) == SIZE + 1
