"""Mutates bytes and config trees at random, and counts how the readers respond."""

from __future__ import annotations

import copy
import functools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from ppcls.errors import UserError

HANG = 120  # seconds

# What YAML gives a meaning to, and what breaks encodings, lines and numbers.
TOKENS = [
    *(b": ", b"- ", b"? ", b"&a ", b"*a ", b"<<: *a", b"!!python/object/apply:os.system [ls]", b"!!binary "),
    *(
        b"!!set ",
        b"!!timestamp 9",
        b"|\n",
        b">-\n",
        b"%YAML 1.1\n",
        b"---\n",
        b"...\n",
        b"# ",
        b"'",
        b'"',
        b"\t",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b"@",
        b"`",
        b"\0",
        b"\x85",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
    ),
    *(b"\\ud800", b".nan", b"-.inf", b"1e999", b"0x_", b"1_0:59", b"9" * 5000, b"null", b"~", b"=", b"yes"),
    *(b"\xf0\x9f\x90\x88", b"\r", b"\r\n", b" " * 60, b"[" * 60, b"- " * 60, b"a: &b [*b]\n"),
]
NUMBERS = st.floats(0, 1)
BYTE_CHANGE = st.one_of(
    st.tuples(st.just("insert"), NUMBERS, st.sampled_from(TOKENS)),
    st.tuples(st.just("insert"), NUMBERS, st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("overwrite"), NUMBERS, st.sampled_from(TOKENS)),
    st.tuples(st.just("cut"), NUMBERS, st.integers(1, 80)),
    st.tuples(st.just("flip"), NUMBERS, st.integers(1, 255)),
    st.tuples(st.just("end"), NUMBERS, st.none()),
    st.tuples(st.just("repeat"), NUMBERS, st.integers(1, 400)),
    st.tuples(st.just("swap lines"), NUMBERS, NUMBERS),
    st.tuples(st.just("indent"), NUMBERS, st.integers(1, 3)),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.integers(),
    st.sampled_from([2**31, 2**63, -(2**63) - 1, 10**400]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["", ".", "..", "/", "\0", "\ud800", "1e-3", "1.0/255.0", "True", "None", "${HOME}", "a" * 5000]
    ),
    st.dates(),
    st.binary(max_size=4),
)
KEYS = st.one_of(st.text(max_size=6), st.integers(-1, 3), st.none(), st.booleans(), st.floats())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
TREE_CHANGE = st.one_of(
    st.tuples(st.just("replace"), NUMBERS, VALUES),
    st.tuples(st.just("remove"), NUMBERS, st.none()),
    st.tuples(st.just("rename"), NUMBERS, KEYS),
    st.tuples(st.just("copy"), NUMBERS, NUMBERS),
    st.tuples(st.just("repeat"), NUMBERS, st.integers(2, 40)),
    st.tuples(st.just("wrap"), NUMBERS, st.integers(1, 60)),
    st.tuples(st.just("add"), NUMBERS, st.tuples(KEYS, VALUES)),
)


def mutate(data: bytes, change: tuple[str, float, Any]) -> bytes:
    kind, where, value = change
    at = min(int(where * len(data)), max(len(data) - 1, 0))
    if kind in ("swap lines", "indent"):
        lines = data.split(b"\n")
        line = min(int(where * len(lines)), len(lines) - 1)
        if kind == "indent":
            lines[line] = b" " * value + lines[line]
        else:
            other = min(int(value * len(lines)), len(lines) - 1)
            lines[line], lines[other] = lines[other], lines[line]
        return b"\n".join(lines)
    match kind:
        case "insert":
            return data[:at] + value + data[at:]
        case "overwrite":
            return data[:at] + value + data[at + len(value) :]
        case "cut":
            return data[:at] + data[at + value :]
        case "flip":
            return data[:at] + bytes([data[at] ^ value]) + data[at + 1 :] if data else data
        case "repeat":
            return data[:at] + data[at : at + 40] * value + data[at:]
        case _:
            return data[:at]


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every (parent, key) of a tree."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(value, (dict, list)):
            yield from places(value)


def change_tree(tree: Any, change: tuple[str, float, Any]) -> None:
    kind, where, value = change
    found = list(places(tree))
    if not found:
        return
    parent, key = found[min(int(where * len(found)), len(found) - 1)]
    node = parent[key]
    match kind:
        case "replace":
            parent[key] = value
        case "remove":
            del parent[key]
        case "rename" if isinstance(parent, dict):
            parent[value] = parent.pop(key)
        case "copy":
            from_parent, from_key = found[min(int(value * len(found)), len(found) - 1)]
            parent[key] = copy.deepcopy(from_parent[from_key])
        case "repeat" if isinstance(parent, list):
            parent[key : key + 1] = [node] * value
        case "wrap":
            parent[key] = functools.reduce(lambda inner, _: [inner], range(value), node)
        case "add" if isinstance(node, dict):
            node[value[0]] = value[1]


class Tally:
    """Counts outcomes, keeps the longest time, and ends what hangs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.longest = 0.0

    def note(self, act: Callable[[], object]) -> None:
        """Counts what comes of ``act``; raises any error but our own, and one after `HANG` seconds."""

        def hung(number: int, frame: object) -> None:
            raise AssertionError(f"hangs: {HANG} s")

        before = signal.signal(signal.SIGALRM, hung)
        signal.alarm(HANG)
        began = time.perf_counter()
        try:
            act()
        except UserError as error:
            said = str(error)
        else:
            said = None
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        if said is not None:
            assert said.strip()
            assert "Traceback" not in said
        self.counts["valid" if said is None else "refused"] += 1
        self.longest = max(self.longest, time.perf_counter() - began)

    def describe(self) -> str:
        total = sum(self.counts.values())
        return (
            f"{total} tried, {self.counts['refused']} refused in words, {self.counts['valid']} valid, "
            f"0 other errors; the longest took {self.longest:.2f} s"
        )
