"""Converts errors of obstore to StorageError, whose messages say what failed, why, and what to do.

A message of obstore has 25 lines of Rust debug output and the server's XML. This module uses only its
status, its error code, and the error of a user's `credential_provider`.

If the server answered with a status 3xx or 4xx, nothing was changed, except for 408, 409, 425 and 429.
The outcome of these four is "unknown", as after a time-out, a cut connection and status 5xx.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from nyala.errors import StorageError, bounded

RANGE_NOT_SATISFIABLE: Final = 416
THROTTLED: Final = frozenset({429, 503})
"""The statuses by which a bucket refuses a request because it has too many."""

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist")
# Without credentials, obstore asks the metadata server of the cloud.
_NO_CREDENTIALS: Final = re.compile(
    r"169\.254\.169\.254|metadata\.google|/latest/api/token|/latest/meta-data|/msi/token|token request"
)
# The exception of a user's `credential_provider`, such as "RuntimeError: no answer".
_PROVIDER: Final = re.compile(r"External \w+ credential provider: (.*?)(\n\nDebug source|\Z)", re.DOTALL)
_PROVIDER_MAX_CHARS: Final = 300
# obstore could not read the server's answer.
_NOT_AN_ANSWER: Final = re.compile(r"ETag Header missing|non-partial response|Got invalid \w+ response")
_PAGE: Final = re.compile(r"<!doctype html|<html", re.IGNORECASE)
_DOUBTFUL: Final = frozenset({408, 409, 425, 429})

_GIVE_CREDENTIALS: Final = (
    "pass them in storage_options, set the variables of the provider (such as AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY), or give this machine a role"
)
_NOT_THE_BUCKET: Final = (
    "something other than the bucket answered, such as a proxy or a log-in page; check the endpoint and "
    "the network"
)
# What to do, by S3's error code.
_ADVICE: Final[dict[str, str]] = {
    "InvalidAccessKeyId": "the access key does not exist: check the credentials",
    "SignatureDoesNotMatch": "the secret key is wrong: check the credentials",
    "ExpiredToken": "the credentials have expired: get new ones",
    "InvalidToken": "the session token is invalid: get new credentials",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it",
    "PermanentRedirect": "the bucket is in another region: pass its 'region'",
    "AuthorizationHeaderMalformed": "the bucket is probably in another region: pass its 'region'",
    "NotImplemented": "this service does not have the operation: use another service",
}
_ADVICE_BY_STATUS: Final[dict[int, str]] = {
    301: "the bucket is in another region: pass its 'region'",
    307: "the bucket is in another region: pass its 'region'",
    401: "the credentials are not valid: check them",
    403: "give these credentials the right to read, write, list and delete there",
    429: "the bucket is overloaded: try again later",
    503: "the bucket is overloaded: try again later",
}


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in the error's message; None if the server did not answer."""
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1])


def is_about_object(error: BaseException) -> bool:
    """Whether an error with status 404 is about a missing object.

    Otherwise it is about a missing bucket, or it is the page of a proxy.
    """
    text = str(error)
    return _NO_BUCKET.search(text) is None and _PAGE.search(text) is None


def bucket_error(error: BaseException, verb: str, url: str) -> StorageError:
    """Convert an error of obstore. A StorageError is returned unchanged.

    verb: what was tried with the object at `url`, such as "read".
    """
    if isinstance(error, StorageError):
        return error
    reason, certain = _reason(error)
    return StorageError(f"cannot {verb} {url}: {reason}", path=url, outcome=None if certain else "unknown")


def check_from_bucket(meta: Mapping[str, Any], content_type: str, verb: str, url: str) -> None:
    """Raise StorageError if the answer to a request came from a proxy and not from the bucket.

    An answer of a bucket has an ETag, and is not HTML.

    meta, content_type: the object's metadata in the answer, and its content type.
    verb: what was tried with the object at `url`, such as "read".
    """
    if meta["e_tag"] is None or content_type.startswith("text/html"):
        raise StorageError(f"cannot {verb} {url}: {_NOT_THE_BUCKET}", path=url)


def _reason(error: BaseException) -> tuple[str, bool]:
    """Return what happened and what to do, and whether it is certain that nothing was changed."""
    text = str(error)
    status, code = status_of(error), _CODE.search(text)
    kind = type(error).__name__
    if raised := _PROVIDER.search(text):
        why = bounded(" ".join(raised[1].split()), _PROVIDER_MAX_CHARS)
        return f"the function 'credential_provider' failed: {why}", True
    if _NO_CREDENTIALS.search(text):
        return f"no credentials were found; {_GIVE_CREDENTIALS}", True
    if status is None:
        return _reason_without_answer(text, kind)
    if 400 <= status < 500 and code is None and _PAGE.search(text):
        return f"the server answered {status} with a page of HTML: {_NOT_THE_BUCKET}", status not in _DOUBTFUL
    if status == 404 or _NO_BUCKET.search(text):
        return "the bucket does not exist; check its name, the endpoint and the region", True
    shown = f"{status} {code[1]}" if code else str(status)
    advice = _ADVICE.get(code[1] if code else "") or _ADVICE_BY_STATUS.get(status)
    certain = 300 <= status < 500 and status not in _DOUBTFUL
    if advice is None:
        advice = "the bucket rejects the request" if certain else "the bucket failed: try again later"
    return f"the server answered {shown}; {advice}", certain


def _reason_without_answer(text: str, kind: str) -> tuple[str, bool]:
    if kind == "UnauthenticatedError":
        return f"there are no valid credentials; {_GIVE_CREDENTIALS}", True
    if kind == "InvalidPathError":
        return (
            "the bucket has an object below this prefix whose name has empty parts, '.' or '..'; remove it, or use "
            "a prefix of its own for the store",
            True,
        )
    if _NOT_AN_ANSWER.search(text):
        return _NOT_THE_BUCKET, False
    if "without LOCATION" in text:
        return _ADVICE["PermanentRedirect"], True
    if "BadScheme" in text:
        return (
            "the endpoint is http://, which is not encrypted; pass 'allow_http': True if that is meant",
            True,
        )
    if "ertificate" in text:
        return "the certificate of the server is not trusted; check the endpoint", True
    if "dns error" in text:
        return "the name of the server cannot be resolved; check the endpoint and the network", False
    if "kind: Connect" in text:
        return "there is no connection to the server; check the endpoint and the network", False
    if "kind: Timeout" in text or "TimedOut" in text:
        return "the server did not answer in time; check the network", False
    return "the connection broke; check the network", False
