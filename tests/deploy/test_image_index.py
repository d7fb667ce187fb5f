"""``ppcls index``: its file, its searches with FAISS and NumPy, and re-ranking."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_index import write_index
from small_classifier import config_tree, write_config, write_image, write_weights
from small_embedding import embedding_tree, write_model

from ppcls.cli import index as index_cli
from ppcls.deploy.image_index import ImageIndex, _search_with_numpy
from ppcls.deploy.index_folder import create_index, load_index, remove_images
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.metric.functional.reranking import reranked_similarities

Run = Callable[..., tuple[int, list[str], str]]


def unit_vectors(count: int, size: int = 8) -> np.ndarray:
    vectors = np.random.default_rng(5).standard_normal((count, size)).astype("float32")
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def index_of(vectors: np.ndarray, **settings: Any) -> ImageIndex:
    return ImageIndex(tuple(Path(f"{row}.jpg") for row in range(len(vectors))), vectors, **settings)


@pytest.fixture
def without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = embedding_tree(tmp_path_factory.mktemp("model") / "model.safetensors")
    write_model(tree)
    return write_config(Path(tree["Global"]["pretrained_model"]).with_name("config.yaml"), tree)


@pytest.fixture
def run(capsys: pytest.CaptureFixture) -> Run:
    def call(*arguments: object) -> tuple[int, list[str], str]:
        capsys.readouterr()
        code = index_cli.main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return code, output.out.splitlines(), output.err

    return call


def test_index_is_built_searched_and_changed(
    model: Path, run: Run, tmp_path: Path, without_faiss: None
) -> None:
    images = [write_image(tmp_path / "images" / f"{seed}.png", seed) for seed in range(5)]
    (tmp_path / "images" / "bad.png").write_bytes(b"no image")
    file, more = tmp_path / "mine.index", write_image(tmp_path / "more" / "9.png", 9)
    code, lines, error = run("build", file, tmp_path / "images", "--model", model)
    assert code == 3
    assert lines[0].endswith("bad.png: error: not an image that can be decoded")
    assert lines[1] == f"{file}: 5 images, searched with NumPy (exact)"
    assert "1 image could not be read" in error
    assert run("build", file, more, "--model", model)[0] == 2

    predictor = Predictor(model, device="cpu")
    vectors = np.stack([found.vector for found in predictor.embed([image.read_bytes() for image in images])])
    (query,) = predictor.embed([more.read_bytes()])
    code, lines, _ = run("search", file, more, "--nearest", 3, "--json", "--model", model)
    (found,) = map(json.loads, lines)
    similar = vectors @ query.vector
    best = np.argsort(-similar)[:3]
    assert (code, found["path"]) == (0, str(more))
    assert found["nearest"] == [str(images[row]) for row in best]
    np.testing.assert_allclose(found["similarities"], similar[best], atol=1e-5)

    assert run("add", file, more, images[0], "--model", model)[1] == [
        f"{file}: 6 images, searched with NumPy (exact)"
    ]
    assert run("search", file, more, "--nearest", 1, "--model", model)[1] == [f"{more}: {more} 1.0000"]
    code, lines, _ = run("remove", file, more.parent, images[1])
    assert (code, lines) == (0, [f"{file}: 4 images, searched with NumPy (exact)"])
    assert set(load_index(file).files) == {images[0], *images[2:]}
    assert f"{more}: not in the index" in run("remove", file, more)[2]
    assert "found none after the removal; delete the folder" in run("remove", file, tmp_path)[2]


def test_another_model_is_an_error(run: Run, model: Path, tmp_path: Path) -> None:
    image = write_image(tmp_path / "1.png", 1)
    file = tmp_path / "mine.index"
    assert run("build", file, image, "--model", model)[0] == 0
    index = load_index(file)
    index.check_model(Predictor(model, device="cpu"))
    (tmp_path / "other").mkdir()
    shutil.rmtree(file)
    create_index(file, ImageIndex(index.files, index.vectors, "flat", index.model, -index.probe))
    code, _, error = run("search", file, image, "--model", model)
    assert code == 2
    assert "not the model of the index: the embeddings of a test image have the similarity -1.00" in error
    shutil.rmtree(file)
    create_index(file, ImageIndex(index.files, index.vectors[:, :3], model="the/model"))
    assert (
        "returns embeddings of 6 values, but those of the index have 3"
        in run("search", file, image, "--model", model)[2]
    )


def test_model_of_classes_is_an_error(run: Run, tmp_path: Path) -> None:
    tree = config_tree(write_weights(tmp_path / "w.safetensors"), None)
    config, image = write_config(tmp_path / "classes.yaml", tree), write_image(tmp_path / "1.png", 1)
    code, _, error = run("build", tmp_path / "mine.index", image, "--model", config)
    assert code == 2
    assert "expected an embedding model (RecModel), found a classifier" in error
    assert not (tmp_path / "mine.index").exists()


@pytest.mark.parametrize("content", [b"", b"no index", b"PK\x03\x04 cut off"])
def test_file_that_is_no_index_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.index"
    with pytest.raises(UserError, match="no such file; create an index with ppcls index build"):
        load_index(file)
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.index: expected a file written by ppcls index"):
        load_index(file)


def test_rerank_orders_the_nearest_images_by_shared_neighbors(without_faiss: None) -> None:
    vectors = unit_vectors(40)
    index = index_of(vectors[1:])
    (found,) = index.nearest(vectors[:1], 7, rerank=True)
    order = np.argsort(-reranked_similarities(vectors, 1)[0])[:7]  # 39 images, so all are re-ranked
    assert found.files == tuple(Path(f"{row}.jpg") for row in order)
    np.testing.assert_allclose(found.similarities, vectors[1:][order] @ vectors[0], atol=1e-6)
    assert found.files != index.nearest(vectors[:1], 7)[0].files


def test_hnsw_without_faiss_is_an_error(without_faiss: None) -> None:
    with pytest.raises(UserError, match=r"kind hnsw needs FAISS: pip install '\.\[retrieval\]'"):
        index_of(unit_vectors(3), kind="hnsw").nearest(unit_vectors(1), 1)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_faiss_finds_what_numpy_finds(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    vectors = unit_vectors(300)
    create_index(tmp_path / "x.index", index_of(vectors, kind=kind))
    index = load_index(tmp_path / "x.index")
    assert index.engine == f"FAISS ({kind})"
    found = index.nearest(vectors[:20], 10)
    remove_images(tmp_path / "x.index", [Path("0.jpg")])
    changed = load_index(tmp_path / "x.index").nearest(vectors[:1], 1)
    monkeypatch.setitem(sys.modules, "faiss", None)
    for by_faiss, by_numpy in zip(found, index_of(vectors).nearest(vectors[:20], 10), strict=True):
        assert by_faiss.files == by_numpy.files
        np.testing.assert_allclose(by_faiss.similarities, by_numpy.similarities, atol=1e-6)
    assert found[0].files[0] == Path("0.jpg") != changed[0].files[0]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("changes", "arrays", "reason"),
    [
        ({"files": ["a"]}, {}, r"'vectors': expected one vector per file, .* got shape \(4, 8\) for 1 "),
        ({"files": "abcd"}, {}, "kind 'flat', files str"),
        ({"files": ["a\0", "b", "c", "d"]}, {}, "expected paths without a NUL character, found"),
        ({"files": [1, 2, 3, 4]}, {}, "not int"),
        ({"model": 5}, {}, "not int"),
        ({"kind": ["flat"]}, {}, "kind \\['flat'\\]"),
        ({"kind": "hnsw"}, {"faiss": np.zeros(99, np.uint8)}, "faiss"),
        ({"files": []}, {"vectors": unit_vectors(0)}, r"got shape \(0, 8\) for 0 files"),
        ({}, {"vectors": unit_vectors(4) * np.nan}, "'vectors': expected finite float32 numbers"),
        ({}, {"vectors": np.array([["a"] * 8] * 4)}, "'vectors': expected finite float32 numbers, got <U1"),
        (
            {},
            {"probe": unit_vectors(1)[0, :3]},
            r"array 'probe': expected \(\d+,\), the shape of one vector, got \(3,\)",
        ),
        ({}, {"about": np.frombuffer(b"[" * 200_000, np.uint8)}, "recursion"),
    ],
)
def test_damaged_index_is_an_error(tmp_path: Path, changes: Any, arrays: Any, reason: str) -> None:
    if changes.get("kind") == "hnsw":
        pytest.importorskip("faiss")
    file = write_index(tmp_path / "bad.index", changes, **arrays)
    with pytest.raises(UserError, match=f"bad.index: expected a file written by ppcls index: .*{reason}"):
        load_index(file)


@pytest.mark.hostile
def test_index_that_is_larger_than_its_file_is_an_error(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 45, 4)}
    )
    file = write_index(tmp_path / "bad.index")
    with zipfile.ZipFile(file) as valid:
        about = valid.read("about.npy")
    for kind, reason in ((zipfile.ZIP_STORED, "Unable to allocate"), (zipfile.ZIP_DEFLATED, ".* compressed")):
        with zipfile.ZipFile(file, "w", kind) as archive:
            archive.writestr("about.npy", about)
            archive.writestr("vectors.npy", header.getvalue())
        with pytest.raises(UserError, match=f"expected a file written by ppcls index: {reason}"):
            load_index(file)


@pytest.mark.hostile
def test_faiss_index_of_other_vectors_is_an_error(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    other, flat = faiss.IndexHNSWFlat(8, 32), faiss.IndexFlatIP(8)
    other.add(unit_vectors(100))
    flat.add(unit_vectors(4))
    for index in (other, flat):
        file = write_index(tmp_path / "bad.index", {"kind": "hnsw"}, faiss=faiss.serialize_index(index))
        with pytest.raises(
            UserError, match=r"expected IndexHNSWFlat with vectors of shape \(4, 8\), got Index"
        ):
            load_index(file)


@pytest.mark.hostile
def test_pipe_as_index_is_an_error(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.index")
    assert (
        "pipe.index: cannot be read as an index: not a regular file"
        in run("remove", tmp_path / "pipe.index", "x")[2]
    )


def test_query_of_another_size_is_an_error() -> None:
    with pytest.raises(UserError, match="returns embeddings of 5 values, but those of the index have 8"):
        index_of(unit_vectors(3)).nearest(unit_vectors(1, 5), 1)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 60), st.integers(0, 9))
def test_numpy_finds_the_rows_of_a_complete_sort(images: int, queries: int, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.integers(-2, 3, (images, 3)).astype(np.float32)  # with equal similarities
    asked = random.integers(-2, 3, (queries, 3)).astype(np.float32)
    count = min(count, images)
    rows, similarities = _search_with_numpy(asked, vectors, count)
    expected = np.argsort(-(asked @ vectors.T), axis=1, kind="stable")[:, :count]
    assert rows.tolist() == expected.tolist()
    assert similarities.tolist() == np.take_along_axis(asked @ vectors.T, expected, axis=1).tolist()


def test_a_search_with_numpy_does_not_sort_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(20_000, 8)).astype(np.float32)
    largest = 0
    sort = np.argsort

    def count_sorted(values: Any, **options: Any) -> Any:
        nonlocal largest
        largest = max(largest, len(values))
        return sort(values, **options)

    monkeypatch.setattr("ppcls.deploy.image_index.np.argsort", count_sorted)
    _search_with_numpy(vectors[:3], vectors, 10)
    assert largest == 10
