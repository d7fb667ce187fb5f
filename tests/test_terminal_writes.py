"""All text that can contain names of strangers is escaped before it reaches a terminal."""

from __future__ import annotations

import ast
import logging

from paths import ROOT

from ppcls.serve import request_log

# Modules that write to standard streams themselves: the functions that escape text, the streams, and
# text without names.
ESCAPING = {
    "files/__init__.py",
    "runtime/streams.py",
    "report/console.py",
    "recipe/json_schema.py",
    "serve/server.py",
}
PACKAGE = ROOT / "ppcls"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).as_posix() not in ESCAPING)


def is_stream(node: ast.AST) -> bool:
    return ast.unparse(node) in ("sys.stderr", "sys.stdout", "sys.__stderr__", "sys.__stdout__")


def writes_raw_text(call: ast.Call) -> bool:
    """Returns whether a call writes text to a standard stream that is neither constant nor escaped."""
    name = call.func
    writes = isinstance(name, ast.Attribute) and name.attr == "write" and is_stream(name.value)
    prints = (
        isinstance(name, ast.Name)
        and name.id == "print"
        and any(word.arg == "file" and is_stream(word.value) for word in call.keywords)
    )
    return (writes or prints) and not all(
        isinstance(text, ast.Constant)
        or (isinstance(text, ast.Call) and ast.unparse(text.func) in ("escape_controls", "for_terminal"))
        for text in call.args
    )


def test_text_on_standard_streams_is_escaped() -> None:
    raw = [
        f"{path}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and writes_raw_text(node)
    ]
    assert not raw, "use print_error of ppcls.files, or write_output of ppcls.cli.command"


def test_check_finds_raw_text() -> None:
    found = [
        writes_raw_text(node)
        for node in ast.walk(ast.parse("sys.stderr.write(name)\nprint(name, file=sys.stdout)"))
        if isinstance(node, ast.Call)
    ]
    assert found == [True, True]


def test_lines_of_a_server_are_escaped() -> None:
    record = logging.LogRecord("ppcls", logging.INFO, "", 0, "GET / from %s", ("\x1b[2J\u202e",), None)
    assert request_log.TextFormatter().format(record) == "INFO: GET / from \\x1b[2J\\u202e"
