"""Errors of object storage that a user must fix: one message, the right exit code, and no other output.

The proxy in front of each server answers with the errors of the real clouds. Moto checks keys and policies,
and azurite checks signatures, so two tests need no such answers.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from cloud_servers import CLOUDS, Cloud, azure_signature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from fault_proxy import Answer
from few_digits import write_few_digits
from s3_server import BUCKET

from ppcls.errors import UserError
from ppcls.files import objects
from ppcls.files.objects import Objects, StorageAccessError, StorageError
from ppcls.storage.models import fetch_model
from ppcls.storage.run_copy import RunCopy, RunUploader, open_run

_REQUESTS = {
    "list": lambda storage, folder: storage.infos(),
    "info": lambda storage, folder: storage.info("a"),
    "kind": lambda storage, folder: storage.is_object(),
    "read": lambda storage, folder: storage.read("a"),
    "download": lambda storage, folder: storage.download("a", folder / "copy"),
    "write": lambda storage, folder: storage.write("b", b"1"),
    "upload": lambda storage, folder: storage.upload(folder / "file", "b"),
    "remove": lambda storage, folder: storage.remove(["a"]),
}
_WHERE = {
    "s3": "AWS_ACCESS_KEY_ID",
    "azure": "AZURE_STORAGE_CONNECTION_STRING",
    "google": "GOOGLE_APPLICATION",
}


def s3(status: int, code: str, message: str = "", more: str = "") -> Answer:
    content = f"<Error><Code>{code}</Code><Message>{message or code}</Message>{more}</Error>"
    return Answer(status, content.encode(), {"Content-Type": "application/xml"})


def azure(status: int, code: str, message: str = "", detail: str = "") -> Answer:
    more = f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>" if detail else ""
    message = f"{message or code}\nRequestId:4f2a\nTime:2026-11-29T09:00:00Z"
    content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    return Answer(status, content.encode(), {"x-ms-error-code": code, "Content-Type": "application/xml"})


def google(status: int, reason: str, message: str) -> Answer:
    error = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
    return Answer(status, json.dumps({"error": error}).encode(), {"Content-Type": "application/json"})


_NO_LIST = "me@project.iam.gserviceaccount.com does not have storage.objects.list access to the bucket."
_OTHER_REGION = "the region 'us-east-1' is wrong; expecting 'eu-central-1'"
# Kind of storage, answer of the server, exit code, and parts of the message.
ANSWERS: dict[str, tuple[str, Answer, int, tuple[str, ...]]] = {
    "s3-bucket": ("s3", s3(404, "NoSuchBucket"), 2, ("no such bucket", f"create '{BUCKET}'")),
    "s3-key": ("s3", s3(403, "InvalidAccessKeyId"), 2, ("InvalidAccessKeyId", "correct them")),
    "s3-secret": ("s3", s3(403, "SignatureDoesNotMatch"), 2, ("SignatureDoesNotMatch", "correct them")),
    "s3-denied": ("s3", s3(403, "AccessDenied"), 2, ("not permitted", "AccessDenied", "allow s3:")),
    "s3-token": ("s3", s3(400, "InvalidToken"), 2, ("InvalidToken", "AWS_SESSION_TOKEN")),
    "s3-expired": ("s3", s3(400, "ExpiredToken"), 75, ("credentials have expired", "renew them")),
    "s3-clock": ("s3", s3(403, "RequestTimeTooSkewed"), 2, ("the clock of this machine is wrong",)),
    "s3-region": (
        "s3",
        s3(400, "AuthorizationHeaderMalformed", _OTHER_REGION, "<Region>eu-central-1</Region>"),
        2,
        ("another region", "set AWS_DEFAULT_REGION to the region of the bucket (eu-central-1)"),
    ),
    "s3-redirect": ("s3", s3(301, "PermanentRedirect"), 2, ("another region", "AWS_ENDPOINT_URL")),
    "azure-container": (
        "azure",
        azure(404, "ContainerNotFound"),
        2,
        ("no such bucket", f"create '{BUCKET}'"),
    ),
    "azure-key": (
        "azure",
        azure(403, "AuthenticationFailed", detail="The MAC signature is not the same as any computed one"),
        2,
        ("AuthenticationFailed", "MAC signature", "correct them"),
    ),
    "azure-expired": (
        "azure",
        azure(403, "AuthenticationFailed", detail="Signature not valid in the specified time frame"),
        75,
        ("credentials have expired", "time frame", "renew them"),
    ),
    "azure-denied": (
        "azure",
        azure(403, "AuthorizationPermissionMismatch"),
        2,
        ("not permitted", "AuthorizationPermissionMismatch", "Storage Blob Data"),
    ),
    "azure-firewall": (
        "azure",
        azure(403, "AuthorizationFailure"),
        2,
        ("not permitted", "AuthorizationFailure"),
    ),
    "azure-anonymous": ("azure", azure(401, "NoAuthenticationInformation"), 2, ("no credentials found",)),
    "azure-public": ("azure", azure(409, "PublicAccessNotPermitted"), 2, ("not permitted",)),
    "azure-disabled": ("azure", azure(403, "AccountIsDisabled"), 2, ("AccountIsDisabled",)),
    "google-bucket": (
        "google",
        google(404, "notFound", "The specified bucket does not exist."),
        2,
        ("no such bucket", f"create '{BUCKET}'"),
    ),
    "google-expired": (
        "google",
        google(401, "authError", "Invalid Credentials"),
        75,
        ("credentials have expired", "Invalid Credentials", "renew them"),
    ),
    "google-anonymous": (
        "google",
        google(401, "required", "Anonymous caller does not have storage.objects.get access to the object."),
        2,
        ("no credentials found", "Anonymous caller", "gcloud auth"),
    ),
    "google-denied": (
        "google",
        google(403, "forbidden", _NO_LIST),
        2,
        ("not permitted", "Forbidden: me@project", "allow storage.objects."),
    ),
}


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Returns the storage of a kind, whose server runs until all tests of this module are done."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        started: dict[str, Cloud] = {}
        patch.setattr(objects, "RETRY_DELAYS", (0.0,) * 5)

        def start(kind: str) -> Cloud:
            if kind not in started:
                home = tmp_path_factory.mktemp(kind) / "home"
                started[kind] = stack.enter_context(CLOUDS[kind](patch, home))
                Objects(started[kind].url).write("a", b"1")
            started[kind].proxy.fault = lambda method, path, number: None
            return started[kind]

        yield start


def answering(cloud: Cloud, answer: Answer) -> Cloud:
    """Makes all requests fail with an answer."""
    cloud.proxy.faults = {**cloud.proxy.faults, "answer": answer}
    cloud.proxy.fault = lambda method, path, number: "answer"
    return cloud


def failure(request: str, url: str, folder: Path) -> UserError:
    """Returns the error of a request."""
    (folder / "file").write_bytes(b"1")
    with pytest.raises(UserError) as caught:
        _REQUESTS[request](Objects(url), folder)
    assert type(caught.value) in (StorageError, StorageAccessError)
    return caught.value


def requests_of(case: str) -> list[str]:
    """Returns the requests that a case makes: all for one case of each storage, and fewer for the others.

    The libraries answer requests with a content, without one, and those that write in different ways. Each
    request of S3 takes a second, because each attempt connects again.
    """
    if ANSWERS[case][1].status == 404:  # a missing bucket has no objects, which only some requests report
        return ["list", "write", "upload"]
    return list(_REQUESTS) if case.endswith("-denied") else ["list", "info", "write"]


@pytest.mark.parametrize("case", ANSWERS)
def test_rejected_requests_are_explained(
    clouds: Any, case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, answer, code, parts = ANSWERS[case]
    cloud = answering(clouds(kind), answer)
    for request in requests_of(case):
        start = cloud.proxy.count
        error = failure(request, cloud.url, tmp_path)
        assert (request, error.code, str(error)) == (request, code, str(error))
        message = str(error)
        assert message.startswith(
            (f"{cloud.url}: can't ", f"{cloud.url}/a: can't ", f"{cloud.url}/b: can't ")
        )
        assert "\n" not in message
        for part in parts:
            assert part in message, request
        if answer.status in (401, 403):
            assert _WHERE[kind] in message or "clock" in message
        # botocore follows redirections without a limit, until the recursion is too deep.
        assert cloud.proxy.count - start < 900
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["s3", "azure", "google"])
def test_rejections_within_a_run_are_retried(clouds: Any, kind: str, tmp_path: Path) -> None:
    """Credentials and permissions that worked before may work again soon."""
    wrong = {"s3": "s3-key", "azure": "azure-key", "google": "google-anonymous"}[kind]
    denied = {"s3": "s3-denied", "azure": "azure-denied", "google": "google-denied"}[kind]
    cloud = clouds(kind)
    storage = Objects(cloud.url)
    assert storage.read("a") == b"1"
    for case, code in ((wrong, 75), (denied, 2)):
        answering(cloud, ANSWERS[case][1])
        start = cloud.proxy.count
        cloud.proxy.fault = lambda method, path, number, start=start: "answer" if number < start + 4 else None
        assert storage.read("a") == b"1"
        answering(cloud, ANSWERS[case][1])
        with pytest.raises(UserError) as caught:
            storage.read("a")
        assert caught.value.code == code


@pytest.mark.parametrize("case", ["s3-expired", "azure-expired", "google-expired"])
def test_credentials_that_have_expired_before_the_first_request_are_reported_soon(
    clouds: Any, case: str, tmp_path: Path
) -> None:
    """The libraries don't repeat the request themselves, as gcsfs would: six times in half a minute."""
    kind, answer, code, _ = ANSWERS[case]
    cloud = answering(clouds(kind), answer)
    start = cloud.proxy.count
    error = failure("read", cloud.url, tmp_path)
    assert error.code == code
    assert "credentials have expired" in str(error)
    assert cloud.proxy.count - start == (9 if kind == "s3" else 3)  # botocore also asks for the region


@pytest.mark.parametrize("case", ["s3-expired", "azure-expired", "google-expired"])
def test_credentials_that_expire_after_a_request_are_awaited(clouds: Any, case: str) -> None:
    kind, answer, _, _ = ANSWERS[case]
    cloud = clouds(kind)
    storage = Objects(cloud.url)
    assert storage.read("a") == b"1"
    answering(cloud, answer)
    start = cloud.proxy.count
    cloud.proxy.fault = lambda method, path, number: "answer" if number < start + 5 else None
    storage.write("b", b"2")
    assert storage.read("b") == b"2"


def test_google_credentials_that_cannot_be_renewed_are_reported_soon(
    clouds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gcsfs would ask for a new token six times, in half a minute, for each attempt."""
    refused = json.dumps(
        {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
    )
    cloud = answering(clouds("google"), Answer(400, refused.encode(), {"Content-Type": "application/json"}))
    file = tmp_path / "key.json"
    file.write_text(json.dumps(service_account(f"{cloud.proxy.url}/token")))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    start = cloud.proxy.count
    error = failure("read", cloud.url, tmp_path)
    assert error.code == 2
    assert "expired or revoked" in str(error)
    assert _WHERE["google"] in str(error)
    assert cloud.proxy.count - start == 3


def service_account(token_uri: str) -> dict[str, str]:
    """Returns the content of a file with the credentials of a service account of Google."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "project",
        "client_email": "me@project.iam.gserviceaccount.com",
        "private_key": key.decode(),
        "token_uri": token_uri,
    }


@pytest.mark.parametrize("kind", ["s3", "azure", "google"])
def test_missing_bucket_is_named(clouds: Any, kind: str, tmp_path: Path) -> None:
    """The servers themselves answer here."""
    url = clouds(kind).url.replace(f"//{BUCKET}/", "//missing-bucket/")
    for act in (
        lambda: open_run(url, resumes=False),
        lambda: fetch_model(url),
        lambda: Objects(url).infos(),
        lambda: Objects(url).check_bucket(),
    ):
        with pytest.raises(
            StorageAccessError, match=r"no such bucket .*; create 'missing-bucket', or"
        ) as caught:
            act()
        assert caught.value.code == 2
        assert str(caught.value).startswith(url)


@pytest.mark.parametrize("kind", ["s3", "azure", "google"])
def test_upload_that_is_no_longer_permitted_ends_with_the_code_for_users(
    clouds: Any, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = clouds(kind)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").write_text("1\n")
    uploader = RunUploader(RunCopy(f"{cloud.url}/run", tmp_path / "run"))
    uploader.after_checkpoint()
    (tmp_path / "run" / "train.log").write_text("1\n2\n")
    answering(
        cloud, ANSWERS[{"s3": "s3-denied", "azure": "azure-denied", "google": "google-denied"}[kind]][1]
    )
    uploader.after_checkpoint()
    assert "the run continues" in capsys.readouterr().err
    with pytest.raises(StorageAccessError, match="all files of the run are in") as caught:
        uploader.finish()
    assert caught.value.code == 2


@pytest.mark.parametrize("kind", ["s3", "azure", "google"])
def test_proxies_of_the_environment_are_used(
    clouds: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host of the storage has no address, so that only the proxy can have sent the answer."""
    cloud = clouds(kind)
    answering(
        cloud, ANSWERS[{"s3": "s3-denied", "azure": "azure-denied", "google": "google-denied"}[kind]][1]
    )
    monkeypatch.setenv("http_proxy", cloud.proxy.url)
    for name in ("AWS_ENDPOINT_URL", "AZURE_STORAGE_CONNECTION_STRING", "STORAGE_EMULATOR_HOST"):
        if name in os.environ:
            setting = os.environ[name].replace(cloud.proxy.url, "http://storage.invalid")
            monkeypatch.setenv(name, setting)
    assert "not permitted" in str(failure("read", cloud.url, tmp_path))


def set_credentials(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Removes all credentials from the environment, and sets the variables."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) and name != "AWS_ENDPOINT_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_machine_without_credentials(
    clouds: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = clouds(kind)
    set_credentials(monkeypatch, HOME=str(tmp_path))
    error = failure("read", cloud.url, tmp_path)
    assert error.code == 2
    assert _WHERE[kind] in str(error)
    assert {"s3": "no credentials found", "azure": "the name of the account"}[kind] in str(error)


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({"AWS_PROFILE": "gone"}, "The config profile (gone) could not be found"),
        ({"AWS_ACCESS_KEY_ID": "key"}, "Partial credentials"),
    ],
)
def test_incomplete_credentials_of_s3(
    clouds: Any, variables: dict[str, str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = clouds("s3")
    set_credentials(monkeypatch, HOME=str(tmp_path), **variables)
    error = failure("read", cloud.url, tmp_path)
    assert error.code == 2
    assert part in str(error)


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({"AZURE_STORAGE_CONNECTION_STRING": "nonsense"}, "Connection string"),
        ({"AZURE_STORAGE_ACCOUNT_NAME": "tester", "AZURE_STORAGE_ACCOUNT_KEY": "x"}, "base64"),
    ],
)
def test_malformed_credentials_of_azure(
    clouds: Any, variables: dict[str, str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = clouds("azure")
    set_credentials(monkeypatch, **variables)
    error = failure("read", cloud.url, tmp_path)
    assert error.code == 2
    assert part in str(error)


@pytest.mark.parametrize("content", [None, "no JSON", '{"type": "other"}'])
def test_unusable_file_of_google_is_named(
    clouds: Any, content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gcsfs sends requests without credentials then."""
    cloud = answering(clouds("google"), ANSWERS["google-anonymous"][1])
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    error = failure("read", cloud.url, tmp_path)
    assert error.code == 2
    assert f"GOOGLE_APPLICATION_CREDENTIALS={file} can't be used" in str(error)


def test_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec.implementations.local

    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0,) * 5)
    monkeypatch.setattr(fsspec.implementations.local.LocalFileSystem, "makedirs", fail)
    with pytest.raises(
        StorageAccessError, match=r"not permitted \(Permission denied\); allow this user"
    ) as caught:
        Objects(f"file://{tmp_path}/run").write("a", b"1")
    assert caught.value.code == 2


def account_policy(url: str, *actions: str) -> dict[str, str]:
    """Makes a user of moto with a policy, and returns the variables with its credentials.

    Args:
        url: Address of the server.
        actions: Permitted actions.
    """
    import boto3

    admin = {"aws_access_key_id": "admin", "aws_secret_access_key": "admin", "region_name": "us-east-1"}
    iam = boto3.client("iam", endpoint_url=url, **admin)
    iam.create_user(UserName="reader")
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    iam.put_user_policy(UserName="reader", PolicyName="p", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


def check_requests(cloud: Cloud, allowed: bytes) -> None:
    """Makes moto check keys and policies after a number of requests."""
    url = f"{cloud.proxy.url}/moto-api/reset-auth"
    urlopen(Request(url, allowed, {"Content-Type": "text/plain"}, method="POST")).close()


@pytest.mark.slow
def test_moto_checks_keys_and_policies(clouds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = clouds("s3")
    reader = account_policy(cloud.proxy.url, "s3:GetObject", "s3:ListBucket")
    check_requests(cloud, b"0")
    try:
        for variables, requests, part in (
            (
                {"AWS_ACCESS_KEY_ID": "wrong", "AWS_SECRET_ACCESS_KEY": "x"},
                ("list", "info"),
                "InvalidAccessKeyId",
            ),
            (reader | {"AWS_SECRET_ACCESS_KEY": "x"}, ("kind", "download"), "SignatureDoesNotMatch"),
            (reader, ("write", "upload"), "not permitted (AccessDenied"),
            (reader, ("remove",), "allow s3:DeleteObject on 'bucket'"),
        ):
            set_credentials(monkeypatch, **variables)
            for request in requests:
                error = failure(request, cloud.url, tmp_path)
                assert error.code == 2
                assert part in str(error), request
        assert Objects(cloud.url).read("a") == b"1"
        with pytest.raises(StorageAccessError, match="not permitted"):
            open_run(f"{cloud.url}/run", resumes=False)
    finally:
        check_requests(cloud, b"inf")


def test_azurite_checks_signatures(clouds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = clouds("azure")
    endpoint = os.environ["AZURE_STORAGE_CONNECTION_STRING"].partition("SharedAccessSignature=")[0]
    wrong_key = base64.b64encode(b"another key").decode()
    for signature, requests, code, part in (
        (azure_signature("rwdlac", 1, wrong_key), _REQUESTS, 2, "Server failed to authenticate the request"),
        # Azurite does not say that a signature has expired, unlike Azure.
        (azure_signature("rwdlac", -1), _REQUESTS, 2, "Server failed to authenticate the request"),
        (azure_signature("rl", 1), ("write", "upload"), 2, "not permitted (AuthorizationPermissionMismatch"),
        (
            azure_signature("wdlac", 1),
            ("read", "download"),
            2,
            "not permitted (AuthorizationPermissionMismatch",
        ),
    ):
        string = f"{endpoint}SharedAccessSignature={signature}"
        set_credentials(monkeypatch, AZURE_STORAGE_CONNECTION_STRING=string)
        for request in requests:
            error = failure(request, cloud.url, tmp_path)
            assert (request, error.code, str(error)) == (request, code, str(error))
            assert part in str(error), request


def class_folders(folder: Path) -> Path:
    """Writes images of two classes, and returns their folder."""
    data = folder / "data"
    write_few_digits(folder / "digits", 20, 1)
    for line in (folder / "digits" / "train_list.txt").read_text().splitlines():
        name, label = line.split()
        target = data / str(int(label) % 2)
        target.mkdir(parents=True, exist_ok=True)
        os.link(folder / "digits" / name, target / Path(name).name)
    return data


@pytest.mark.slow
@pytest.mark.parametrize("case", ["s3-denied", "azure-denied", "google-anonymous", "google-expired"])
def test_commands_print_one_line(clouds: Any, case: str, tmp_path: Path) -> None:
    """The libraries log these errors with tracebacks. Each command gives up at the same request."""
    kind, answer, code, parts = ANSWERS[case]
    cloud = answering(clouds(kind), answer)
    url = cloud.url
    data = class_folders(tmp_path)
    image = next((data / "0").iterdir())
    commands = [
        ("infer", "--model", url, image),
        ("eval", "--model", url, "--data", data),
        ("train", data, "--output", url, "--device", "cpu"),
        ("train", "--resume", url),
        ("train", f"{url}/data", "--output", tmp_path / "run"),
    ]
    for command in commands:
        start = cloud.proxy.count
        result = subprocess.run(
            [sys.executable, "-m", "ppcls", *map(str, command)],
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == code, (command, result.stderr)
        assert result.stderr.startswith("error: "), (command, result.stderr)
        assert result.stderr.count("\n") == 1, (command, result.stderr)
        assert url in result.stderr
        for part in parts:
            assert part in result.stderr
        if kind == "google":  # up to two requests for each of three attempts
            assert cloud.proxy.count - start <= 6, command
