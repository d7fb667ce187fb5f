"""The readers of untrusted bytes, one function per target.

A target returns, or raises one of `EXPECTED`. Anything else is a finding: another exception, a crash of the
process, more than `SECONDS` or `MEMORY_MIB` for one input.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import uvicorn
from google.protobuf.message import Message
from paddle.base.proto import framework_pb2
from starlette.datastructures import Headers
from uvicorn.server import ServerState

from ppcls.config.base.overrides import Override
from ppcls.config.base.yaml import read_yaml
from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError
from ppcls.data.images.npy import read_npy
from ppcls.data.images.read_header import read_header
from ppcls.data.images.tags import read_orientation
from ppcls.data.index.class_names import read_class_names
from ppcls.data.index.files import read_list
from ppcls.data.records import tfrecord
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.messages import ProtobufError
from ppcls.data.records.shard import OpenFiles
from ppcls.data.transforms.specs import DecodeImage
from ppcls.data.transforms.specs.basic import DecodeNumpy
from ppcls.deploy.image_index import ImageIndex
from ppcls.deploy.index_file import read_index_file
from ppcls.deploy.models.description import read_description
from ppcls.deploy.models.programs.legacy import read_legacy
from ppcls.deploy.models.programs.onnx_file import check_onnx
from ppcls.deploy.models.programs.openvino_file import check_openvino
from ppcls.deploy.models.programs.parameters import check_parameters
from ppcls.deploy.models.programs.parts import ProgramError, StoredTensor, find_operator
from ppcls.deploy.models.programs.pir import read_pir
from ppcls.engine.checkpoint.snapshot import _read_state
from ppcls.errors import UserError
from ppcls.postprocess.results import Classification, Embedding, Prediction
from ppcls.recipe.compat import translate_old_keys
from ppcls.recipe.load import validate
from ppcls.serve.app import build_app
from ppcls.serve.connections import LimitedProtocol, OpenConnections
from ppcls.serve.limits import BusyError, RequestError, RequestLimits
from ppcls.serve.metrics import ServerMetrics
from ppcls.serve.uploads import read_images
from ppcls.weights.files import read_arrays, read_pdparams
from ppcls.weights.manifest import read_manifest
from ppcls.weights.torch_file import read_torch

EXPECTED = (UserError, DecodeError, RequestError, BusyError, ProgramError)
SECONDS = 10
MEMORY_MIB = 2048

Target = Callable[[bytes, Path], None]
TARGETS: dict[str, Target] = {}
_MAX_PIXELS = 1 << 16
# A PNG of one pixel with four channels, before and after its EXIF data
_PNG_HEADER = bytes.fromhex("0000000d49484452000000010000000108060000001f15c489")
_PNG_REST = bytes.fromhex("0000000d49444154789c63f8ffffff7f0009fb03fd2a86e38a0000000049454e44ae426082")
_LIMITS = RequestLimits(max_bytes=10_000, max_images=4, timeout=5)


def target(function: Target) -> Target:
    TARGETS[function.__name__] = function
    return function


def written(data: bytes, path: Path) -> Path:
    path.write_bytes(data)
    return path


@target
def pdparams(data: bytes, folder: Path) -> None:
    read_pdparams(written(data, folder / "weights.pdparams"))


@target
def torch_file(data: bytes, folder: Path) -> None:
    read_torch(written(data, folder / "weights.pth"))


@target
def safetensors(data: bytes, folder: Path) -> None:
    read_arrays(written(data, folder / "weights.safetensors"))


@target
def manifest(data: bytes, folder: Path) -> None:
    """With a digest that fits, if there is a place for it."""
    try:
        tree = json.loads(data)
        del tree["sha256"]
        digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
        data = json.dumps({**tree, "sha256": digest}).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    written(data, folder / "manifest.json")
    read_manifest(folder)


@target
def state(data: bytes, folder: Path) -> None:
    written(data, folder / "state.json")
    _read_state(folder)


@target
def program_json(data: bytes, folder: Path) -> None:
    """What is accepted stays the same when it is read again, and contains only operators of the table."""
    copy, parameters = read_pir(data)
    assert read_pir(copy) == (copy, parameters)
    names = re.findall(rb'"#":"([^"]*)","A":', copy)
    assert all(name == b"p" or find_operator("pir", name.decode().removesuffix("_")) for name in names)
    with written(data, folder / "inference.pdiparams").open("rb") as file:
        check_parameters(file, parameters)


@target
def program_protobuf(data: bytes, folder: Path) -> None:
    """What is accepted is a program of one block with operators of the table for Paddle's own parser, too."""
    copy, parameters = read_legacy(data)
    assert read_legacy(copy) == (copy, parameters)
    program = framework_pb2.ProgramDesc.FromString(copy)
    assert len(program.blocks) == 1
    for operator in program.blocks[0].ops:
        find_operator("legacy", operator.type)
    with written(data, folder / "inference.pdiparams").open("rb") as file:
        check_parameters(file, parameters)


@target
def program_parameters(data: bytes, folder: Path) -> None:
    """The parameters of a program with two tensors."""
    expected = [StoredTensor("a", "float32", (2, 3)), StoredTensor("b", "int64", (1,))]
    with written(data, folder / "inference.pdiparams").open("rb") as file:
        check_parameters(file, expected)


@target
def onnx_file(data: bytes, folder: Path) -> None:
    """What is accepted has no control flow and no weights in other files for ONNX's own parser, too."""
    check_onnx(written(data, folder / "inference.onnx"))
    try:
        model = onnx.ModelProto.FromString(data)
    except ProtobufError:
        return
    parts: list[Any] = [model]
    while parts:
        part = parts.pop()
        if isinstance(part, onnx.AttributeProto):
            assert not part.HasField("g")
            assert not part.graphs
        elif isinstance(part, onnx.TensorProto):
            assert not part.external_data
            assert part.data_location == onnx.TensorProto.DEFAULT
        for field, value in part.ListFields():
            if field.message_type is not None:
                parts += [value] if isinstance(value, Message) else value


@target
def openvino_file(data: bytes, folder: Path) -> None:
    """What is accepted has no control flow for another parser, too."""
    check_openvino(written(data, folder / "inference.xml"))
    for element in ElementTree.fromstring(data).iter():
        assert element.tag not in ("body", "then_body", "else_body")
        assert (
            element.get("type", "").lower() not in ("if", "loop", "tensoriterator") or element.tag != "layer"
        )


@target
def image(data: bytes, folder: Path) -> None:
    """Headers agree with what is decoded, and limit it."""
    for channels in (3, 1, 4):
        spec = DecodeImage(channels=channels, max_pixels=_MAX_PIXELS)
        try:
            header, pixels = read_header(data), decode(spec, data)
        except DecodeError:
            continue
        assert {header.height, header.width} == set(pixels.shape[:2])
        assert pixels.shape[2] == channels


@target
def tiff(data: bytes, folder: Path) -> None:
    """A TIFF whose directory is valid: the input's first byte selects the kind of file, then follow tags.

    Each tag has 8 bytes: number (from 254), type, count, and value. The rest of the input are pixels.
    """
    big = bool(data[:1] and data[0] & 1)
    order = ">" if data[:1] and data[0] & 2 else "<"
    count = min(len(data) // 8, data[0] >> 2 if data else 0)
    tags = [
        struct.unpack_from("<BBHI", data, 1 + 8 * number)
        for number in range(count)
        if 9 + 8 * number <= len(data)
    ]
    pixels = data[1 + 8 * len(tags) :]
    start = 16 + len(pixels)
    head = (b"MM" if order == ">" else b"II") + struct.pack(order + "H", 43 if big else 42)
    head += struct.pack(order + "HHQ", 8, 0, start) if big else struct.pack(order + "I8x", start)
    entry = order + ("HHQQ" if big else "HHII")
    entries = b"".join(
        struct.pack(entry, 254 + tag, kind % 20, number, value) for tag, kind, number, value in tags
    )
    number = struct.pack(order + ("Q" if big else "H"), len(tags))
    image(head + pixels + number + entries + bytes(8), folder)


@target
def exif(data: bytes, folder: Path) -> None:
    """EXIF data alone, and in images with four channels."""
    with suppress(ValueError):
        assert isinstance(read_orientation(data), int)
    chunk = struct.pack(">I", len(data)) + b"eXIf" + data + struct.pack(">I", zlib.crc32(b"eXIf" + data))
    begin = b"\x89PNG\r\n\x1a\n" + _PNG_HEADER + chunk
    with suppress(DecodeError):
        assert read_header(begin + _PNG_REST).orientation == read_orientation(data)


@target
def npy(data: bytes, folder: Path) -> None:
    read_npy(DecodeNumpy(dtype="uint8", channels=3, max_pixels=_MAX_PIXELS), data)


@target
def image_list(data: bytes, folder: Path) -> None:
    read_list(folder, written(data, folder / "list.txt"), " ", 10)


@target
def multi_label_list(data: bytes, folder: Path) -> None:
    read_list(folder, written(data, folder / "list.txt"), "\t", None, labelled="per class")


@target
def camera_list(data: bytes, folder: Path) -> None:
    read_list(folder, written(data, folder / "list.txt"), " ", None, labelled="with cameras")


@target
def image_index(data: bytes, folder: Path) -> None:
    """An index that can be read can be searched, and its names can be printed."""
    index = read_index_file(written(data, folder / "images.index"))
    for found in index.nearest(index.vectors[:1], 3):
        str(found)
        json.dumps(found.as_tree(), allow_nan=False)


@target
def class_names(data: bytes, folder: Path) -> None:
    read_class_names(written(data, folder / "names.txt"), 10)


@target
def config_yaml(data: bytes, folder: Path) -> None:
    tree = read_yaml(written(data, folder / "config.yaml"))
    translate_old_keys(tree)
    validate(tree, "config.yaml")


@target
def override(data: bytes, folder: Path) -> None:
    Override.parse(data.decode(errors="surrogateescape")).apply(
        {"Global": {"epochs": 1, "ops": [1, {"a": 2}]}}
    )


@target
def inference_yml(data: bytes, folder: Path) -> None:
    written(data, folder / "inference.yml")
    read_description(folder)


def read_shard(kind: str, shard: bytes, index: bytes, folder: Path) -> None:
    """Reads all records of a shard, by an index file or, if that is empty, by the index built for it."""
    record_format = FORMATS[kind]
    path, index_path = written(shard, folder / "shard"), folder / "shard.idx"
    index_path.write_bytes(index or (record_format.build_index(path) or "").encode())
    opened = record_format.open(path, index_path, OpenFiles())
    for number in range(len(opened.labels)):
        opened.where(number)
        with suppress(DecodeError):
            opened.read(number)


def split_index(data: bytes) -> tuple[bytes, bytes]:
    """Returns shard and index; the first two bytes are the length of the index."""
    end = 2 + int.from_bytes(data[:2], "big")
    return data[end:], data[2:end]


@target
def recordio(data: bytes, folder: Path) -> None:
    read_shard("recordio", *split_index(data), folder)


@target
def webdataset(data: bytes, folder: Path) -> None:
    read_shard("webdataset", *split_index(data), folder)


@target
def tfrecord_file(data: bytes, folder: Path) -> None:
    """All checksums are zeros, because changes would rarely get past real ones."""
    checksum, tfrecord._checksum = tfrecord._checksum, lambda _: bytes(4)
    try:
        read_shard("tfrecord", *split_index(data), folder)
    finally:
        tfrecord._checksum = checksum


@target
def lmdb(data: bytes, folder: Path) -> None:
    written(data, folder / "data.mdb")
    shard = FORMATS["lmdb"].open(folder, folder / "unused", OpenFiles())
    for number in range(len(shard.labels)):
        shard.where(number)
        with suppress(DecodeError):
            shard.read(number)


@target
def http_form(data: bytes, folder: Path) -> None:
    async def body() -> Any:
        yield data

    headers = Headers({"content-type": "multipart/form-data; boundary=B"})
    asyncio.run(read_images(headers, body(), _LIMITS, lambda _: None))


class _Answers(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self._closing = bytearray(), False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def pause_reading(self) -> None:
        """Nothing more comes."""

    def resume_reading(self) -> None:
        """Nothing more comes."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""


class _Answerer:
    """`ppcls.serve.models.ServedModels` and its only service, without a model."""

    ready = explains = True

    def __init__(self) -> None:
        self.metrics, self.services = ServerMetrics(), {"Net": self}
        description = SimpleNamespace(Global=SimpleNamespace(model_name="Net"), width=3)
        self.predictor = SimpleNamespace(description=description, embeds=False)

    def find(self, name: str | None) -> _Answerer:
        if name is not None:
            raise RequestError(404, "no such model")
        return self

    async def predict(self, images: list[bytes], topk: int | None, client: str) -> list[Prediction]:
        assert len(images) <= _LIMITS.max_images
        assert sum(map(len, images)) <= _LIMITS.max_bytes
        return [self.answer for _ in images]

    async def explain(self, image: bytes, class_id: int) -> bytes:
        assert class_id < self.predictor.description.width
        return image

    async def load(self, name: str) -> _Answerer:
        if not name.isascii():
            raise RequestError(404, "no such subfolder")
        return self

    async def unload(self, name: str) -> None:
        self.find(name)

    answer: Prediction = Classification((1,), None, (0.5,))


class _Embedder(_Answerer):
    answer = Embedding(np.array([0, 0.6, 0.8], np.float32))


@target
def http_request(data: bytes, folder: Path) -> None:
    """No request makes the server fail (status 500) or its log show an exception."""
    _send(data, _http_config())


@target
def http_search(data: bytes, folder: Path) -> None:
    """Like `http_request`, for a server with an index of images."""
    _send(data, _http_config(embeds=True))


def _send(data: bytes, config: uvicorn.Config) -> None:
    errors: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = errors.append  # type: ignore[method-assign]
    log = logging.getLogger("uvicorn.error")
    log.handlers, log.propagate = [handler], False
    transport = _Answers()

    async def serve() -> None:
        protocol = LimitedProtocol(
            OpenConnections(10, 5.0, 5.0), config=config, server_state=ServerState(), app_state={}
        )
        protocol.connection_made(transport)
        if data:  # asyncio never passes nothing
            protocol.data_received(data)
        for _ in range(20):
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        while protocol.tasks:
            await asyncio.sleep(0)

    asyncio.run(serve())
    assert not errors, logging.Formatter().format(errors[0])
    assert b"HTTP/1.1 500" not in transport.written


@cache
def _http_config(embeds: bool = False) -> uvicorn.Config:
    index = ImageIndex((Path("a.png"), Path(os.fsdecode(b"\xff.png"))), np.eye(3, dtype=np.float32)[:2])
    models = _Embedder() if embeds else _Answerer()
    app = build_app(models, _LIMITS, index if embeds else None)  # type: ignore[arg-type]
    config = uvicorn.Config(app, log_config=None, lifespan="off", access_log=False)
    config.load()
    return config
