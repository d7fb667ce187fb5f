from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import needs_chromium, opened_server
from running import Running, running
from small_classifier import write_config
from small_embedding import SIZE, embedding_tree, write_model

from ppcls.deploy.image_index import ImageIndex, probe_embedding
from ppcls.deploy.index_folder import create_index
from ppcls.deploy.predictor import Predictor
from ppcls.recipe.load import validate


@pytest.fixture(scope="module")
def embedding_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tree = embedding_tree(tmp_path_factory.mktemp("model") / "model.safetensors")
    write_model(tree)
    return tree


@pytest.fixture(scope="module")
def embedding_server(
    embedding_config: dict[str, Any], folder: Path, images: list[bytes]
) -> Iterator[Running]:
    weights = Path(embedding_config["Global"]["pretrained_model"])
    predictor = Predictor(validate(embedding_config, "test"))
    vectors = np.stack([found.vector for found in predictor.embed(images)])
    files = tuple(Path(f"{number}.png") for number in range(len(images)))
    create_index(
        weights.with_name("mine.index"), ImageIndex(files, vectors, probe=probe_embedding(predictor))
    )
    config = write_config(weights.with_name("config.yaml"), embedding_config)
    with running(folder, "-c", config, "--index", weights.with_name("mine.index")) as server:
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
    error = {"error": "topk: expected no value, because this model returns embeddings, not classes"}
    assert (rejected.status_code, rejected.json()) == (400, error)


def test_search_returns_the_nearest_images_of_the_index(
    embedding_server: Running, images: list[bytes]
) -> None:
    with embedding_server.client() as client:
        files = [("image", ("a", images[3])), ("image", ("b", images[0]))]
        answer = client.post("/search", files=files, params={"nearest": 2})
        by_default = client.post("/search", files=files[:1]).json()
        rejected = client.post("/search", files=files, params={"nearest": "no"})
    first, second = answer.json()["results"]
    assert (first["nearest"][0], second["nearest"][0]) == ("3.png", "0.png")
    assert first["similarities"][0] == pytest.approx(1.0, abs=1e-5)
    assert [len(first["nearest"]), len(by_default["results"][0]["nearest"])] == [2, 5]
    error = {"error": "nearest: expected one integer > 0, got 'no'"}
    assert (rejected.status_code, rejected.json()) == (400, error)


@needs_chromium
def test_page_shows_the_first_values(embedding_server: Running, images: list[bytes]) -> None:
    with opened_server(embedding_server) as page:
        page.locator("#model:not(:empty)").wait_for()
        assert page.locator("#model").inner_text().startswith("WideResNet, embeddings; images")
        page.locator("#file").set_input_files({"name": "a", "mimeType": "image/png", "buffer": images[0]})
        shown = page.locator("article p", has_text="Embedding: ")
        shown.wait_for()
        assert len(shown.inner_text().split(", ")) == SIZE + 1


@pytest.mark.slow
@pytest.mark.hostile
def test_search_escapes_names_that_are_not_utf8(
    embedding_config: dict[str, Any], folder: Path, images: list[bytes]
) -> None:
    config = Path(embedding_config["Global"]["pretrained_model"]).with_name("config.yaml")
    write_config(config, embedding_config)
    predictor = Predictor(validate(embedding_config, "test"))
    (found,) = predictor.embed(images[:1])
    file = config.with_name("bytes.index")
    names = (Path(os.fsdecode(b"\xff.png")),)
    create_index(file, ImageIndex(names, found.vector[None], probe=probe_embedding(predictor)))
    with running(folder, "-c", config, "--index", file) as server, server.client() as client:
        answer = client.post("/search", files={"image": images[0]})
    assert (answer.status_code, answer.json()["results"][0]["nearest"]) == (200, ["\\udcff.png"])
