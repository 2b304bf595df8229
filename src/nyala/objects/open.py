"""Opens the bucket that a URL names: s3://, gs://, az:// or abfss://.

The URL file:///FOLDER opens a local folder that is used like a bucket.

The names and types of options are checked first, and no message shows their values. Without
options, credentials are found as the provider's own tools find them: in environment variables, in
the files of the AWS command line (`aws_profile`), or from the role of the machine.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from nyala.env import SYSTEM, Env
from nyala.errors import InvalidArgumentError, StorageError
from nyala.objects.aws_profile import aws_profile
from nyala.objects.base import Objects
from nyala.objects.bucket import TIMEOUT_S, BucketObjects, Connect
from nyala.objects.folder import FolderObjects
from nyala.objects.handle import is_key
from nyala.optional import need
from nyala.suggestion import nearest

StorageOptions = Mapping[str, Any] | Callable[[], Any]
"""Options by name, or a function, which is the option `credential_provider`."""

_COMMON: Final[dict[str, type | tuple[type, ...]]] = {
    "credential_provider": object,
    "credentials_file": str,
    "timeout_s": (int, float),
}
_OPTIONS: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {
    "s3": {
        "region": str,
        "endpoint": str,
        "allow_http": bool,
        "access_key_id": str,
        "secret_access_key": str,
        "session_token": str,
        "profile": str,
        **_COMMON,
    },
    "gs": {"service_account_path": str, "allow_http": bool, **_COMMON},
    "az": {
        "account_name": str,
        "account_key": str,
        "sas_token": str,
        "endpoint": str,
        "allow_http": bool,
        **_COMMON,
    },
    "file": {},
}
_SCHEMES: Final = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az", "file": "file",
}  # fmt: skip
PUBLIC_OPTIONS: Final[dict[str, type | tuple[type, ...]]] = {
    "region": str,
    "endpoint": str,
    "allow_http": bool,
    "profile": str,
    "service_account_path": str,
    "account_name": str,
    "credentials_file": str,
    "timeout_s": (int, float),
}
"""The options that are not secret. Plans, logs and messages may show them."""

_FILE_MAX_BYTES: Final = 1 << 20
_TIMEOUT_MAX_S: Final = 24 * 3600
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}")
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+(/[A-Za-z0-9._/-]*)?")


def open_objects(url: str, storage_options: StorageOptions | None = None, env: Env = SYSTEM) -> Objects:
    """Return the objects below a URL. Sends no request.

    Parameters
    ----------
    url
        `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
        `abfss://container@account.dfs.core.windows.net/prefix` or `file:///folder`.
    storage_options
        For S3: `region`, `endpoint`, `allow_http`, `access_key_id`, `secret_access_key`,
        `session_token`, `profile`. For Google: `service_account_path`, `allow_http`. For Azure:
        `account_name`, `account_key`, `sas_token`, `endpoint`, `allow_http`. For all of them:
        `timeout_s` (default: 20 seconds); `credentials_file`, a file with further options as a JSON
        object, which `storage_options` override; and `credential_provider`, a function as obstore
        defines it. A function instead of a dict is the `credential_provider`.

    Raises
    ------
    InvalidArgumentError
        The URL or an option is invalid.
    ImportError
        obstore is not installed.

    Examples
    --------
    >>> import tempfile
    >>> objects = open_objects("file://" + tempfile.mkdtemp())
    >>> objects.create("log/0", b"first"), objects.get("log/0")
    (True, b'first')
    """
    split = _split(url)
    kind = _SCHEMES[split.scheme]
    options = _checked(kind, storage_options)
    public = tuple(sorted((name, value) for name, value in options.items() if name in PUBLIC_OPTIONS))
    if "credentials_file" in options:
        options = {**_of_file(kind, options.pop("credentials_file"), env), **options}
    if kind == "file":
        if split.netloc not in ("", "localhost") or not split.path.startswith("/"):
            raise InvalidArgumentError(f"{url!r} names no folder: expected file:///folder")
        return FolderObjects(unquote(split.path), env)
    container, _, account = split.netloc.partition("@")
    prefix = split.path.strip("/")
    if not _BUCKET.fullmatch(container) or (account and split.scheme not in ("abfs", "abfss")):
        raise InvalidArgumentError(
            f"the URL begins with {split.scheme}:// and has no valid name of a bucket: expected "
            f"{split.scheme}://bucket/prefix, and credentials in storage_options"
        )
    if prefix and not is_key(prefix):
        raise InvalidArgumentError(
            f"the prefix {prefix!r} is not supported: choose another prefix of letters, digits, '_', '-', '=', '.' "
            "and '/', whose parts do not begin with '.'"
        )
    if account:
        options["account_name"] = account.partition(".")[0]
    connect = {"s3": _s3, "gs": _gs, "az": _az}[kind](container, prefix or None, options, env)
    shown = f"{split.scheme}://{split.netloc}" + (f"/{prefix}" if prefix else "")
    return BucketObjects(shown, connect, options.get("timeout_s", TIMEOUT_S), public)


def _split(url: str) -> SplitResult:
    if not isinstance(url, str):
        raise InvalidArgumentError(f"expected a URL, got {type(url).__name__}")
    if any(character < " " or character == "\x7f" for character in url):  # urlsplit would drop some
        raise InvalidArgumentError("a URL with control characters is not supported")
    try:
        split = urlsplit(url)
    except ValueError:
        split = urlsplit("")
    if split.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise InvalidArgumentError(f"a URL of this kind is not supported: expected one of {known}")
    if split.query or split.fragment:
        raise InvalidArgumentError("a URL with '?' or '#' is not supported: pass storage_options")
    return split


def _checked(kind: str, given: StorageOptions | None) -> dict[str, Any]:
    """Check the names and types of options; return those that are not None."""
    if given is None:
        return {}
    if callable(given):
        given = {"credential_provider": given}
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"storage_options must be a dict or a function, got {type(given).__name__}"
        )
    known = _OPTIONS[kind]
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            near = nearest(str(name), known)
            raise InvalidArgumentError(
                f"unknown storage option {name!r}"
                + (f": did you mean {near!r}?" if near else f": expected one of {', '.join(known) or 'none'}")
            )
        if value is None:
            continue
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            types = known[name]
            wanted = types if isinstance(types, tuple) else (types,)
            words = " or ".join("function" if one is object else one.__name__ for one in wanted)
            raise InvalidArgumentError(
                f"the storage option {name!r} must be of type {words}, not {type(value).__name__}"
            )
        options[name] = value
    if not 0 < options.get("timeout_s", 1) <= _TIMEOUT_MAX_S:  # also refuses NaN
        raise InvalidArgumentError(
            f"the storage option 'timeout_s' must be positive, and at most {_TIMEOUT_MAX_S} seconds"
        )
    if "credential_provider" in options and not callable(options["credential_provider"]):
        raise InvalidArgumentError("the storage option 'credential_provider' must be a function")
    _check_endpoint(options)
    return options


def _of_file(kind: str, path: str, env: Env) -> dict[str, Any]:
    """Return the options in a credentials file. Error messages do not show the file's content."""
    if env.files.exists(path) and env.files.size(path) > _FILE_MAX_BYTES:
        raise InvalidArgumentError(f"the credentials file {path!r} has more than {_FILE_MAX_BYTES} bytes")
    try:
        given = json.loads(env.files.read_all(path))
    except StorageError as error:
        raise InvalidArgumentError(
            f"cannot read the credentials file {path!r} on host {socket.gethostname()}: {error}"
        ) from None
    except ValueError:
        given = None
    if not isinstance(given, dict) or {"credentials_file", "credential_provider"} & given.keys():
        raise InvalidArgumentError(
            f"the credentials file {path!r} must hold one JSON object with storage options, such as "
            '{"access_key_id": "…", "secret_access_key": "…"}'
        )
    try:
        return _checked(kind, given)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"credentials file {path!r}: {error}") from None


def _check_endpoint(options: Mapping[str, Any]) -> None:
    endpoint = options.get("endpoint")
    if endpoint is None:
        return
    if not _ENDPOINT.fullmatch(endpoint):
        raise InvalidArgumentError(
            "the storage option 'endpoint' must be like https://host:port, without credentials"
        )
    if endpoint.startswith("http://") and not options.get("allow_http"):
        raise InvalidArgumentError(
            "the storage option 'endpoint' is http://, which is not encrypted: use https://, or pass "
            "'allow_http': True if that is meant"
        )


def _s3(bucket: str, prefix: str | None, options: Mapping[str, Any], env: Env) -> Connect:
    keys = {
        name: options[name]
        for name in ("access_key_id", "secret_access_key", "session_token")
        if name in options
    }
    if keys and not {"access_key_id", "secret_access_key"} <= keys.keys():
        raise InvalidArgumentError("pass both storage options 'access_key_id' and 'secret_access_key'")
    sources = [bool(keys), "profile" in options, "credential_provider" in options]
    if sum(sources) > 1:
        raise InvalidArgumentError(
            "pass only one of the storage options 'access_key_id', 'profile' and 'credential_provider'"
        )
    config = dict(keys)
    if not keys and "credential_provider" not in options:
        config = aws_profile(options.get("profile"), os.environ, env.files)
    for name in ("region", "endpoint"):
        if name in options:
            config[name] = options[name]
    # Override AWS_CONDITIONAL_PUT, because a store without put-if-absent would lose data.
    config["conditional_put"] = "etag"
    return _connect("S3Store", bucket, prefix, config, options)


def _gs(bucket: str, prefix: str | None, options: Mapping[str, Any], env: Env) -> Connect:
    config = {"service_account": options["service_account_path"]} if "service_account_path" in options else {}
    return _connect("GCSStore", bucket, prefix, config, options)


def _az(bucket: str, prefix: str | None, options: Mapping[str, Any], env: Env) -> Connect:
    names = {
        "account_name": "account_name",
        "account_key": "account_key",
        "sas_token": "sas_key",
        "endpoint": "endpoint",
    }
    config = {theirs: options[ours] for ours, theirs in names.items() if ours in options}
    if "account_name" not in config and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        raise InvalidArgumentError(
            "pass the storage option 'account_name', or set AZURE_STORAGE_ACCOUNT_NAME"
        )
    return _connect("AzureStore", bucket, prefix, config, options)


def _connect(
    store: str, bucket: str, prefix: str | None, config: dict[str, Any], options: Mapping[str, Any]
) -> Connect:
    def connect(client_options: dict[str, Any], retry_config: dict[str, Any]) -> Any:
        return getattr(need("obstore.store", "s3"), store)(
            bucket,
            prefix=prefix,
            config=config,
            client_options={**client_options, "allow_http": options.get("allow_http", False)},
            retry_config=retry_config,
            credential_provider=options.get("credential_provider"),
        )

    return connect
