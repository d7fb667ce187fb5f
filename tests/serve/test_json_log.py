"""With ``--log-format json``, each line of the server is a JSON object, whoever writes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from paths import ROOT
from running import running
from runs import GUARD
from small_classifier import write_config

TOOL = ROOT / "tools" / "serve.py"
# What libraries and Python write to standard error, in the process of the server.
WRITERS = """
import os, subprocess, sys, threading, warnings
from ppcls.serve import server
bind = server.bind
def write_and_bind(*arguments):
    os.write(2, b"[ERROR:0@0.1] global loadsave.cpp:1 imread_ can't open\\n")
    subprocess.run([sys.executable, "-c", "import os; os.write(2, bytes([255, 10]))"])
    print("printed", file=sys.stderr)
    warnings.warn("warned")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    return bind(*arguments)
server.bind = write_and_bind
"""


def test_all_lines_are_json_objects(tree: dict[str, Any], tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.yaml", tree)
    options = ["-c", config, "--log-format", "json", "--access-log"]
    with running(tmp_path, *options, before=WRITERS) as server:
        with server.client() as client:
            assert client.get("/live").status_code == 200
        server.process.terminate()
        output, errors = server.process.communicate(timeout=GUARD)
        assert server.process.returncode == 0
    records = [json.loads(line) for line in errors.splitlines()]
    assert all({"time", "level", "message", "request_id"} <= set(record) for record in records)
    messages = "\n".join(record["message"] for record in records)
    for expected in (
        "loadsave.cpp:1 imread_ can't open",
        "\\xff",
        "printed",
        "warned",
        "ZeroDivisionError",
        "GET /live",
    ):
        assert expected in messages
    assert json.loads(output)["message"] == "stopped: all requests were answered"


def test_error_at_the_start_is_a_json_object(tmp_path: Path) -> None:
    command = [sys.executable, TOOL, "--model", "missing", "--log-format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 2
    (record,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert record["level"] == "error"
    assert record["message"].startswith("error: ")
    assert json.loads(done.stdout)["message"] == "loading missing ..."
