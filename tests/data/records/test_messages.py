"""The iterator over message fields, compared with the protobuf library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.records.messages import Example, Feature, ProtobufError, TensorProto, TensorProtos, fields


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=300)), max_size=4))
def test_fields_agrees_with_protobuf(parts: list[tuple[int, bytes]]) -> None:
    tensors = [TensorProto(dims=[number], string_data=[data], float_data=[1.5]) for number, data in parts]
    message = TensorProtos(protos=tensors).SerializeToString()
    found = [
        message[begin:end]
        for number, begin, end in fields(memoryview(message), 0, len(message))
        if number == 1
    ]
    assert found == [tensor.SerializeToString() for tensor in tensors]


@given(st.binary(max_size=40))
def test_fields_of_any_bytes_are_inside_or_raise(data: bytes) -> None:
    try:
        places = list(fields(data, 0, len(data)))
    except ProtobufError:
        return
    assert all(0 < begin <= end <= len(data) for _, begin, end in places)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80",
        b"\xff" * 11,
        b"\x0b",
        b"\x0c",
        b"\x0f",
        b"\x0a\x05abc",
        b"\x09abc",
        b"\x0a\xff\xff\xff\xff\x0f",
    ],
)
def test_fields_rejects_invalid_messages(data: bytes) -> None:
    with pytest.raises(ProtobufError):
        list(fields(data, 0, len(data)))


def test_example_has_the_bytes_of_tensorflow() -> None:
    """Bytes written down from the wire format: {"a": int64_list {value: 300}}."""
    made = Example()
    made.features.feature.add(key="a", value=Feature()).value.int64_list.value.append(300)
    assert made.SerializeToString() == bytes.fromhex("0a0d 0a0b 0a0161 1206 1a04 0a02 ac02".replace(" ", ""))
