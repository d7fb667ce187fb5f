from __future__ import annotations

from pathlib import Path

import numpy as np
from browser import needs_chromium, opened_server
from running import running
from small_classifier import write_config
from small_embedding import SIZE, embedding_tree, write_model

from ppcls.config.load import validate
from ppcls.deploy.predictor import Predictor


def test_server_returns_embeddings(images: list[bytes], tmp_path: Path) -> None:
    tree = embedding_tree(tmp_path / "model.safetensors")
    write_model(tree)
    with (
        running(tmp_path, "-c", write_config(tmp_path / "config.yaml", tree)) as server,
        server.client() as client,
    ):
        files = [("image", ("a", each)) for each in images[:3]]
        answer = client.post("/predict", files=files)
        refused = client.post("/predict", files=files, params={"topk": 1})
        about = client.get("/health").json()
    assert answer.status_code == 200
    found = np.array([each["embedding"] for each in answer.json()["results"]])
    expected = Predictor(validate(tree, "test")).embed(images[:3])
    np.testing.assert_allclose(found, np.stack([each.vector for each in expected]), atol=1e-5)
    assert about["embedding_size"] == SIZE
    assert "classes" not in about
    told = {"error": "topk: this model returns embeddings, not classes"}
    assert (refused.status_code, refused.json()) == (400, told)


@needs_chromium
def test_page_shows_the_first_values(images: list[bytes], tmp_path: Path) -> None:
    tree = embedding_tree(tmp_path / "model.safetensors")
    write_model(tree)
    config = write_config(tmp_path / "config.yaml", tree)
    with running(tmp_path, "-c", config) as server, opened_server(server) as page:
        page.wait_for_function("document.getElementById('model').textContent")
        assert page.locator("#model").inner_text().startswith("MobileNetV3_small_x0_35, embeddings; images")
        page.locator("#file").set_input_files({"name": "a", "mimeType": "image/png", "buffer": images[0]})
        told = page.locator("article p", has_text="Embedding: ")
        told.wait_for()
        assert len(told.inner_text().split(", ")) == SIZE + 1
