"""Defines the Protobuf messages in record files, and iterates over their fields without reading images.

Sources: TensorFlow's example.proto and feature.proto; Caffe2's caffe2.proto, of which only the fields that
``fn.readers.caffe2`` reads are defined; and protobuf.dev/programming-guides/encoding for the wire format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError as ProtobufError

# The messages are built here, because code that protoc generates runs only with the Protobuf version for
# which it was generated and with the next one. We support more versions.
_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "bytes": _Field.TYPE_BYTES,
    "string": _Field.TYPE_STRING,
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "bool": _Field.TYPE_BOOL,
}
# Fields of each message as (name, number, type); * marks repeated fields.
_EXAMPLE = {
    "BytesList": [("value", 1, "bytes*")],
    "FloatList": [("value", 1, "float*")],
    "Int64List": [("value", 1, "int64*")],
    "Feature": [
        ("bytes_list", 1, "BytesList"),
        ("float_list", 2, "FloatList"),
        ("int64_list", 3, "Int64List"),
    ],
    # A map is encoded as a repeated message with key and value.
    "Entry": [("key", 1, "string"), ("value", 2, "Feature")],
    "Features": [("feature", 1, "Entry*")],
    "Example": [("features", 1, "Features")],
}
_TENSORS = {
    "TensorProto": [
        ("dims", 1, "int64*"),
        ("data_type", 2, "int32"),
        ("float_data", 3, "float*"),
        ("int32_data", 4, "int32*"),
        ("byte_data", 5, "bytes"),
        ("string_data", 6, "bytes*"),
    ],
    "TensorProtos": [("protos", 1, "TensorProto*")],
}


def create_messages(
    package: str, messages: dict[str, list[tuple[str, int, str]]], syntax: str = "proto3"
) -> dict[str, Any]:
    """Creates message classes in a separate pool, so that they don't conflict with other packages' classes.

    Args:
        package: Name of the Protobuf package.
        messages: Fields of each message as (name, number, type). ``*`` marks repeated fields.
        syntax: ``proto3``, or ``proto2``, in which a field that is not set differs from one that is 0.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    for message, fields in messages.items():
        descriptor = file.message_type.add(name=message)
        for name, number, kind in fields:
            repeated = kind.endswith("*")
            field = descriptor.field.add(name=name, number=number)
            field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            scalar = _TYPES.get(kind.rstrip("*"))
            field.type = scalar or _Field.TYPE_MESSAGE
            if scalar is None:
                field.type_name = f".{package}.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


_EXAMPLES = create_messages("ppcls.example", _EXAMPLE)
Example = _EXAMPLES["Example"]
Feature = _EXAMPLES["Feature"]
_TENSOR_MESSAGES = create_messages("ppcls.caffe2", _TENSORS)
TensorProto = _TENSOR_MESSAGES["TensorProto"]
TensorProtos = _TENSOR_MESSAGES["TensorProtos"]

__all__ = [
    "Bytes",
    "Example",
    "Feature",
    "ProtobufError",
    "TensorProto",
    "TensorProtos",
    "create_messages",
    "fields",
]


class Bytes(Protocol):
    """Interface of a sequence of bytes in memory or in a file."""

    def __getitem__(self, part: slice) -> bytes | memoryview:
        """Returns the bytes of a slice, or fewer bytes at the end of the data."""


_MAX_VARINT = 10  # maximum size of a varint in bytes
_MAX_FIELDS = 10_000  # maximum number of fields in one message
_FIXED = {1: 8, 5: 4}  # size in bytes of the wire types with a fixed size
_LENGTH_DELIMITED = 2


def fields(data: Bytes, begin: int, end: int, most: int = _MAX_FIELDS) -> Iterator[tuple[int, int, int]]:
    """Yields the number, start and end of each field in a message without reading the contents of the fields.

    Args:
        data: Bytes that contain the message.
        begin: Position of the first byte of the message.
        end: Position after the last byte of the message.
        most: Maximum number of fields.

    Raises:
        ProtobufError: The bytes are not a valid message.
    """
    for _ in range(most):
        if begin >= end:
            return
        key, begin = _varint(data, begin, end)
        wire = key & 7
        if wire == 0:
            _, stop = _varint(data, begin, end)
        elif wire == _LENGTH_DELIMITED:
            size, begin = _varint(data, begin, end)
            stop = begin + size
        elif wire in _FIXED:
            stop = begin + _FIXED[wire]
        else:
            raise ProtobufError(f"unknown wire type {wire}")
        if stop > end:
            raise ProtobufError("a field extends beyond the end of its message")
        yield key >> 3, begin, stop
        begin = stop
    if begin < end:
        raise ProtobufError(f"a message has more than {most} fields")


def _varint(data: Bytes, begin: int, end: int) -> tuple[int, int]:
    """Returns the varint at ``begin``, and the position after it."""
    value = 0
    for index, byte in enumerate(data[begin : min(begin + _MAX_VARINT, end)]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, begin + index + 1
    raise ProtobufError("a varint is incomplete")
