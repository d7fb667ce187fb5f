"""Explains why a server of object storage rejects requests, and what the user must change.

Decisions:
- The libraries behind fsspec are optional, so nothing here imports them. Their errors are recognized by the
  names of their classes and by the codes of the servers.
- Only known reasons are explained. Every other error counts as temporary.
- Credentials that have expired count as temporary, because those of rented machines are renewed by others.
- The libraries also report errors to their loggers, with tracebacks. Without a handler, Python would print
  them. A program that has set up logging still receives them.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

_KINDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "azure", "abfs": "azure", "abfss": "azure"}
_LOGGERS = ("adlfs", "aiobotocore", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3")
_LONGEST_REPLY = 300  # characters


class Cause(Enum):
    """Reasons for which a server rejects a request."""

    EXPIRED = "the credentials have expired"
    CREDENTIALS = "the server does not accept the credentials"
    MISSING = "no credentials found"
    PERMISSION = "not permitted"
    BUCKET = "no such bucket"
    REGION = "the bucket is in another region or on another server"
    CLOCK = "the clock of this machine is wrong"
    ACCOUNT = "the name of the account or its credentials are missing or invalid"


@dataclass(frozen=True)
class Rejection:
    """A request that a server, or a library before it asked the server, has rejected.

    Attributes:
        cause: The reason.
        reply: Text of the server or of the library.
        region: Region or server that the server expects; empty if unknown.
        brief: Whether the reply has no text from which the reason follows for certain.
    """

    cause: Cause
    reply: str
    region: str = ""
    brief: bool = False


_S3_CODES = {
    Cause.EXPIRED: (
        *("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"),
        "400",  # the reply to HEAD for expired tokens
    ),
    Cause.CREDENTIALS: (
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId"),
        *("UnrecognizedClientException", "AuthFailure", "InvalidSecurity", "NotSignedUp"),
    ),
    Cause.PERMISSION: ("AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidPayer", "403"),
    Cause.BUCKET: ("NoSuchBucket", "InvalidBucketName"),
    Cause.REGION: (
        *("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"),
    ),
    Cause.CLOCK: ("RequestTimeTooSkewed",),
}
_S3_ERRORS = {
    Cause.MISSING: ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ConfigParseError"),
    Cause.CREDENTIALS: ("CredentialRetrievalError", "SSOError", "TokenRetrievalError"),
    Cause.BUCKET: ("ParamValidationError",),
    Cause.REGION: ("NoRegionError", "InvalidRegionError"),
}
_AZURE_CODES = {
    Cause.MISSING: ("NoAuthenticationInformation",),
    Cause.CREDENTIALS: ("AuthenticationFailed", "InvalidAuthenticationInfo"),
    Cause.PERMISSION: (
        *("AuthorizationFailure", "AuthorizationPermissionMismatch", "AuthorizationProtocolMismatch"),
        *(
            "AuthorizationSourceIPMismatch",
            "AuthorizationServiceMismatch",
            "AuthorizationResourceTypeMismatch",
        ),
        *("InsufficientAccountPermissions", "AccountIsDisabled", "PublicAccessNotPermitted"),
        "KeyBasedAuthenticationNotPermitted",
    ),
    Cause.BUCKET: ("ContainerNotFound", "ContainerDisabled", "InvalidResourceName", "InvalidUri"),
}
_WHERE = {
    "s3": (
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, if they are temporary), "
        "AWS_PROFILE, ~/.aws/credentials or the role of the machine"
    ),
    "gs": (
        "GOOGLE_APPLICATION_CREDENTIALS (the JSON file of a service account), 'gcloud auth "
        "application-default login' or the service account of the machine"
    ),
    "azure": (
        "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, with "
        "AZURE_STORAGE_SAS_TOKEN, with 'az login' or with the identity of the machine"
    ),
}
_PERMISSIONS = {
    ("s3", "write"): "s3:PutObject",
    ("s3", "remove"): "s3:DeleteObject",
    ("s3", ""): "s3:GetObject and s3:ListBucket",
    ("gs", "write"): "storage.objects.create and storage.objects.delete",
    ("gs", "remove"): "storage.objects.delete",
    ("gs", ""): "storage.objects.get and storage.objects.list",
    ("azure", "write"): "the role Storage Blob Data Contributor (in a SAS: w and c)",
    ("azure", "remove"): "the role Storage Blob Data Contributor (in a SAS: d)",
    ("azure", ""): "the role Storage Blob Data Reader (in a SAS: r and l)",
}
_SERVERS = {
    "s3": "the network, the credentials and AWS_ENDPOINT_URL",
    "azure": "the network, the credentials and the name of the account",
}


def kind_of(url: str) -> str:
    """Returns the kind of storage of an address: s3, gs, azure, or an empty string for another kind."""
    return _KINDS.get(url.split(":", 1)[0].lower(), "")


def silence_libraries() -> None:
    """Keeps Python from printing the messages of the libraries for object storage."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            logger.addHandler(logging.NullHandler())


class UnauthorizedError(Exception):
    """Raised instead of the error of gcsfs if the server does not accept the credentials of a request.

    Attributes:
        code: HTTP status, under the name that errors of gcsfs have.
    """

    code = 401


async def raise_if_unauthorized(response: Any) -> None:
    """Checks a response of aiohttp.

    Raises:
        UnauthorizedError: The server does not accept the credentials.
    """
    if response.status == UnauthorizedError.code:
        text = await response.text()
        try:
            raise UnauthorizedError(json.loads(text)["error"]["message"])
        except (ValueError, LookupError, TypeError):
            raise UnauthorizedError(text) from None


def explain(url: str, error: BaseException) -> Rejection | None:
    """Returns why the storage at an address rejected a request; None if the error may be temporary."""
    kinds = {"s3": _explain_s3, "gs": _explain_google, "azure": _explain_azure, "": _explain_disk}
    read = kinds[kind_of(url)]
    for each in _chain(error):
        if (rejection := read(each)) is not None:
            return rejection
    return None


def list_one(url: str, system: Any, root: str) -> None:
    """Lists at most one object, because the reply to this request says why the server rejects others.

    Args:
        url: An address of the storage.
        system: File system of fsspec for this address.
        root: Path of the address in this file system.

    Raises:
        Exception: The error of the library. A `FileNotFoundError` means that the bucket is missing.
    """
    bucket, _, key = root.partition("/")
    kind = kind_of(url)
    if kind == "s3":
        system.call_s3("list_objects_v2", Bucket=bucket, Prefix=key, MaxKeys=1)
    elif kind == "gs":
        system.call("GET", "b/{}/o", bucket, json_out=True, maxResults=1)
    elif kind == "azure":
        system.info(bucket)


def advise(url: str, rejection: Rejection | None, verb: str) -> str:
    """Returns what to do about a rejected request, or about an error that may be temporary.

    Args:
        url: The address.
        rejection: The rejection; None for an error that may be temporary.
        verb: The request, such as ``write``.
    """
    kind = kind_of(url)
    if rejection is None:
        return f"check {_SERVERS.get(kind, 'the network and the credentials')}"
    if not kind:
        return "allow this user to read and write there, or choose another address"
    where = _WHERE[kind]
    bucket = url.split("://", 1)[1].partition("/")[0]
    if rejection.cause is Cause.PERMISSION:
        permissions = _PERMISSIONS.get((kind, verb)) or _PERMISSIONS[kind, ""]
        return f"allow {permissions} on {bucket!r} for these credentials, or use others: {where}"
    if rejection.cause is Cause.REGION:
        expected = f" ({rejection.region})" if rejection.region else ""
        region = f"set AWS_DEFAULT_REGION to the region of the bucket{expected}"
        return f"{region}, and AWS_ENDPOINT_URL to its server"
    return {
        Cause.EXPIRED: f"renew them, and start the same command again: {where}",
        Cause.CREDENTIALS: f"correct them: {where}",
        Cause.MISSING: f"set {where}",
        Cause.BUCKET: f"create {bucket!r}, or correct the address",
        Cause.CLOCK: "set its time",
        Cause.ACCOUNT: f"set {where}",
    }[rejection.cause]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and those from which the libraries made it."""
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__


def _cause_of(code: str, codes: Mapping[Cause, tuple[str, ...]]) -> Cause | None:
    return next((cause for cause, known in codes.items() if code in known), None)


def _names(error: BaseException) -> list[str]:
    """Returns the names of the class of an error and of its base classes."""
    return [each.__name__ for each in type(error).__mro__]


def _shorten(text: object) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= _LONGEST_REPLY else f"{words[:_LONGEST_REPLY]}…"


def _explain_disk(error: BaseException) -> Rejection | None:
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Rejection(Cause.PERMISSION, _shorten(error.strerror))
    return None


def _explain_s3(error: BaseException) -> Rejection | None:
    response = getattr(error, "response", None)
    details = response.get("Error") if isinstance(response, Mapping) else None
    if isinstance(details, Mapping):
        code = str(details.get("Code", ""))
        cause = _cause_of(code, _S3_CODES)
        if cause is None:
            return None
        region = str(details.get("Region") or details.get("Endpoint") or "")
        reply = _shorten(f"{code}: {details.get('Message') or 'no further text'}")
        return Rejection(cause, reply, region, brief=code.isdigit())
    if isinstance(error, RecursionError):  # of botocore, which follows redirections without a limit
        return Rejection(Cause.REGION, "the server redirects each request")
    for name in _names(error) if type(error).__module__.startswith("botocore") else ():
        if (cause := _cause_of(name, _S3_ERRORS)) is not None:
            return Rejection(cause, _shorten(error))
    return None


def _explain_google(error: BaseException) -> Rejection | None:
    text = str(error)
    status = getattr(error, "code", None)
    if "Error" in (names := _names(error))[0] and type(error).__module__.startswith("google.auth"):
        if "TransportError" in names:
            return None
        return Rejection(Cause.CREDENTIALS, _shorten(text))
    if status == 401 and "Anonymous" in text:
        return Rejection(Cause.MISSING, _shorten(text + _unusable_google_file()))
    if status == 401 and "Login Required" in text:
        return Rejection(Cause.MISSING, _shorten(text + _unusable_google_file()))
    if status == 401:
        cause = error.__cause__
        if cause is not None and type(cause).__name__ == "RefreshError":
            return Rejection(Cause.CREDENTIALS, _shorten(cause))
        return Rejection(Cause.EXPIRED, _shorten(text))
    if text.startswith("Forbidden: "):
        reply = text.partition("\n")[2]
        is_limit = re.search("rate.?limit|quota", reply, re.IGNORECASE)
        return None if is_limit else Rejection(Cause.PERMISSION, _shorten(f"Forbidden: {reply}"))
    if text.startswith("Bad Request: ") and "bucket name" in text:
        return Rejection(Cause.BUCKET, _shorten(text.partition("\n")[2]))
    return None


def _unusable_google_file() -> str:
    """Returns why the file with the credentials was ignored; empty if there is no such file.

    gcsfs then sends requests without credentials, and does not mention the file.
    """
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if not path:
        return ""
    from google.auth import default
    from google.auth.exceptions import GoogleAuthError

    try:
        default()
    except (GoogleAuthError, OSError, ValueError) as error:
        return f" (GOOGLE_APPLICATION_CREDENTIALS={path} can't be used: {error})"
    return ""


def _explain_azure(error: BaseException) -> Rejection | None:
    text = str(getattr(error, "message", None) or error)
    if type(error).__module__.startswith("azure.identity") or "CredentialUnavailableError" in _names(error):
        return Rejection(Cause.MISSING, _shorten(text.split("\n", 1)[0]))
    if isinstance(error, ValueError) and re.search("account|[Cc]onnection string|SAS|base64|padding", text):
        return Rejection(Cause.ACCOUNT, _shorten(text))
    code = getattr(error, "error_code", None)
    code = str(getattr(code, "value", code) or "")
    status = getattr(error, "status_code", None)
    cause = _cause_of(code, _AZURE_CODES)
    if cause is None and status == 403:
        cause = Cause.PERMISSION
    if cause is None and status == 401:
        cause = Cause.CREDENTIALS
    if cause is None:
        return None
    if "failed to authenticate" in text:  # azurite reports wrong signatures as AuthorizationFailure
        cause = Cause.CREDENTIALS
    detail = re.search("authenticationerrordetail:(.*)", text, re.IGNORECASE)
    if cause is Cause.CREDENTIALS and re.search("expired|not valid in the specified time", text):
        cause = Cause.EXPIRED
    reply = " ".join([f"{code or status}:", text.split("\n", 1)[0], detail.group(1) if detail else ""])
    # The reply to HEAD has no text.
    return Rejection(cause, _shorten(reply), brief="Operation returned an invalid status" in text)
