"""The files for Kubernetes: their schemas, and their containers' commands on two hosts.

Schemas of Kubernetes come with the package kubernetes-validate. Those of Kubeflow Trainer are definitions of
resources in its repository; `CONTRIBUTING.md` says how to check the files against them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from network_hosts import Hosts, two_hosts
from paths import ROOT
from small_tree import small_tree

from ppcls.weights.files import read_arrays

DEPLOY = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.37")
DEFINITIONS = os.environ.get("KUBEFLOW_TRAINER_CRDS") or None  # a folder of Kubeflow Trainer's repository
NAME = "pets"  # of a JobSet


def load(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / file).read_text()))


def job_spec(file: str) -> dict[str, Any]:
    """Returns the specification of the Job in a file."""
    if file == "job.yaml":
        return dict(load(file)[1]["spec"])
    (node,) = load(file)[0]["spec"]["template"]["spec"]["replicatedJobs"]
    return dict(node["template"]["spec"])


def container_of(file: str) -> dict[str, Any]:
    (container,) = job_spec(file)["template"]["spec"]["containers"]
    return dict(container)


FILES = ("job.yaml", "training-runtime.yaml")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", ["job.yaml", "serve.yaml", "training-runtime.yaml"])
def test_files_are_valid_on_kubernetes(file: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    resources = load(file)
    if file == "training-runtime.yaml":
        resources = [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": job_spec(file)}]
    for resource in resources:
        kubernetes_validate.validate(resource, version, strict=True)


def strict(schema: Any) -> Any:
    """Returns a schema that rejects unknown keys, which Kubernetes removes without a word."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


@pytest.mark.skipif(DEFINITIONS is None, reason="KUBEFLOW_TRAINER_CRDS does not name a folder of definitions")
def test_runtime_is_valid_for_kubeflow_trainer() -> None:
    for resource in load("training-runtime.yaml"):
        kind = resource["kind"].lower()
        text = (Path(str(DEFINITIONS)) / f"trainer.kubeflow.org_{kind}s.yaml").read_text()
        (definition,) = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]
        (version,) = [
            each
            for each in definition["spec"]["versions"]
            if resource["apiVersion"] == f"{definition['spec']['group']}/{each['name']}"
        ]
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {}  # defined by Kubernetes
        jsonschema.validate(resource, schema, jsonschema.Draft7Validator)


@pytest.mark.parametrize("file", FILES)
def test_job_uses_the_exit_codes(file: str) -> None:
    spec = job_spec(file)
    container = container_of(file)
    rule = spec["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]["containerName"]) == ("FailJob", container["name"])
    assert rule["onExitCodes"]["values"] == [2, 4], "another try can help with the other codes"
    pod = spec["template"]["spec"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_names_and_numbers_agree() -> None:
    service, job = load("job.yaml")
    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"] == "ppcls"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    (script,) = container_of("job.yaml")["args"]
    assert f"--nnodes {job['spec']['completions']} " in script
    assert "--master ppcls-0.ppcls:" in script
    runtime, train_job = load("training-runtime.yaml")
    assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"


def probe(file: str, heartbeat: Path) -> int:
    """Runs the command of the liveness probe for a heartbeat file, and returns its exit code."""
    command = container_of(file)["livenessProbe"]["exec"]["command"]
    words = [word.replace("/tmp/heartbeat", str(heartbeat)) for word in command]
    assert words != command
    return subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("file", FILES)
def test_probe_fails_without_progress(file: str, tmp_path: Path) -> None:
    heartbeat = tmp_path / "heartbeat"
    assert probe(file, heartbeat) != 0, "no progress since the start"
    heartbeat.touch()
    assert probe(file, heartbeat) == 0
    os.utime(heartbeat, (0, time.time() - 1700))
    assert probe(file, heartbeat) == 0
    os.utime(heartbeat, (0, time.time() - 1900))
    assert probe(file, heartbeat) == 1
    variables = {each["name"]: each.get("value") for each in container_of(file)["env"]}
    assert variables["PPCLS_HEARTBEAT_FILE"] == "/tmp/heartbeat"


@dataclass
class Job:
    """Starts the containers of a file on two hosts, and replaces those that fail, as Kubernetes does.

    Attributes:
        file: Name of the file.
        hosts: The hosts.
        shared: The volume, in which the commands run.
        restarts: Number of replaced containers.
    """

    file: str
    hosts: Hosts
    shared: Path
    restarts: int = 0

    def temporary(self, rank: int) -> Path:
        """Returns the folder that takes the place of ``/tmp``."""
        return self.shared / f"tmp{rank}"

    def start(self, rank: int) -> subprocess.Popen[bytes]:
        container = container_of(self.file)
        values = {each["name"]: each.get("value") for each in container["env"]} | {
            "POD_IP": self.hosts.addresses[rank],
            "JOB_COMPLETION_INDEX": str(rank),
            "JOBSET_NAME": NAME,
        }
        own = f"{self.temporary(rank)}/"
        self.temporary(rank).mkdir(exist_ok=True)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), clean.get("PATH", "")])
        with (self.shared / f"pod{rank}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *self.hosts.prefixes[rank],
                    *container["command"],
                    *(word.replace("/tmp/", own) for word in container["args"]),
                ],
                cwd=self.shared,
                env={
                    **clean,
                    "PATH": path,
                    **{name: str(value).replace("/tmp/", own) for name, value in values.items() if value},
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, disturb: Callable[[list[subprocess.Popen[bytes]]], bool]) -> None:
        """Runs the job to its end.

        Args:
            disturb: Function that is called with the containers until it returns True.
        """
        pods = [self.start(0), self.start(1)]
        limit = job_spec(self.file)["backoffLimit"]
        stop = job_spec(self.file)["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
        disturbed = False
        try:
            while any(pod.poll() != 0 for pod in pods):
                disturbed = disturbed or disturb(pods)
                for rank, pod in enumerate(pods):
                    if pod.poll():
                        assert pod.returncode not in stop, self.logs()
                        self.restarts += 1
                        assert self.restarts <= limit, self.logs()
                        self.kill(rank, pod)
                        pods[rank] = self.start(rank)
                time.sleep(0.1)
        finally:
            for rank, pod in enumerate(pods):
                self.kill(rank, pod)

    def kill(self, rank: int, pod: subprocess.Popen[bytes]) -> None:
        """Kills all processes of a container. Those of the launcher are in sessions of their own."""
        self.hosts.signal(rank, signal.SIGKILL)
        pod.wait()

    def logs(self) -> str:
        return "\n".join((self.shared / f"pod{rank}.log").read_text()[-4000:] for rank in (0, 1))


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts({"ppcls-0.ppcls": 0, f"{NAME}-node-0-0.{NAME}": 0}) as made:
        if not made.names:
            pytest.skip("network namespaces are not allowed here")
        yield made


@pytest.fixture(scope="module")
def undisturbed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the weights after a run of two processes on one machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    config = write_config(images, folder)
    command = [
        sys.executable,
        "-m",
        "paddle.distributed.launch",
        "--nproc_per_node=2",
        f"--log_dir={folder}/log",
    ]
    command += [str(ROOT / "tools" / "train.py"), "-c", str(config)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return read_arrays(folder / "run" / "latest" / "model.safetensors")


def write_config(images: Path, folder: Path) -> Path:
    """Writes a small config to the path that the commands name."""
    tree = small_tree(images, folder / "run")
    tree["Global"].update(epochs=4, save_steps=1, cpu_threads=1)
    tree["DataLoader"]["Train"]["sampler"] = {"global_batch_size": 8, "shuffle": True}
    path = folder / "configs" / "ResNet50.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(tree))
    return path


def assert_equal(run: Path, expected: dict[str, Any]) -> None:
    found = read_arrays(run / "latest" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.endswith(("._mean", "._variance")):  # averaged over the ranks at each checkpoint
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-9, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "lost"), [("job.yaml", 1), ("job.yaml", 0), ("training-runtime.yaml", 1)])
def test_lost_host_is_replaced_and_the_run_ends_with_the_same_weights(
    hosts: Hosts, images: Path, tmp_path: Path, undisturbed: dict[str, Any], file: str, lost: int
) -> None:
    write_config(images, tmp_path)
    job = Job(file, hosts, tmp_path)

    def lose(pods: list[subprocess.Popen[bytes]]) -> bool:
        steps = [path.name for path in (tmp_path / "run" / "checkpoints").glob("step_*")]
        if not any(name >= "step_00000006" for name in steps):
            return False
        for rank in (0, 1):
            assert probe(file, job.temporary(rank) / "heartbeat") == 0
        job.kill(lost, pods[lost])
        return True

    job.run(lose)
    assert job.restarts >= 2, "the launcher of the other host fails, too"
    assert "resumed" in job.logs()
    assert_equal(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_slow_host_slows_the_run_down_and_changes_nothing(
    hosts: Hosts, images: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    write_config(images, tmp_path)
    hosts.limit_rate(1, "8mbit")
    job = Job("job.yaml", hosts, tmp_path)

    def stop_often(pods: list[subprocess.Popen[bytes]]) -> bool:
        """Stops the second host for most of the time."""
        if pods[1].poll() is None:
            hosts.signal(1, signal.SIGSTOP)
            time.sleep(0.2)
            hosts.signal(1, signal.SIGCONT)
        return False

    job.run(stop_often)
    assert job.restarts == 0
    assert_equal(tmp_path / "run", undisturbed)
