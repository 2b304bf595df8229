"""Reads the files of the AWS command line: ~/.aws/credentials and ~/.aws/config.

obstore does not read them. Only profiles with keys are supported. A profile with a role, single
sign-on or a process needs a `credential_provider`, such as `obstore.auth.boto3.Boto3CredentialProvider`.

If the user gives no `profile` and the environment has no other credentials, the profile is the one
in AWS_PROFILE, or "default".
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from typing import Final

from nyala.env import Files
from nyala.errors import InvalidArgumentError, StorageError
from nyala.suggestion import nearest

_FILE_MAX_BYTES: Final = 1 << 20
_OTHER_SOURCES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_KEYS: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}


def aws_profile(profile: str | None, environ: Mapping[str, str], files: Files) -> dict[str, str]:
    """Return the keys and the region of a profile as a dict, with obstore's names of these options.

    profile: the profile's name. None: the name in AWS_PROFILE, or "default".
    Returns: an empty dict if `profile` is None and the environment has other credentials, or if nobody
        named a profile and "default" has no keys.
    Raises: InvalidArgumentError if a named profile does not exist or has no keys.
    """
    if profile is None:
        if any(environ.get(name) for name in _OTHER_SOURCES):
            return {}
        profile = environ.get("AWS_PROFILE")
    name = profile or "default"
    home = environ.get("HOME", "/")
    keys = _read(environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials", files)
    config = _read(environ.get("AWS_CONFIG_FILE") or f"{home}/.aws/config", files)
    section = name if name == "default" else f"profile {name}"
    found = {**dict(config[section] if section in config else {}), **dict(keys[name] if name in keys else {})}
    if not {"aws_access_key_id", "aws_secret_access_key"} <= found.keys():
        if profile is None:
            return {}
        if not found:
            known = [*keys.sections(), *(name.removeprefix("profile ") for name in config.sections())]
            near = nearest(name, known)
            raise InvalidArgumentError(
                f"there is no profile {name!r} in ~/.aws" + (f": did you mean {near!r}?" if near else "")
            )
        raise InvalidArgumentError(
            f"the profile {name!r} in ~/.aws has no keys: for roles and single sign-on pass a 'credential_provider', "
            "such as obstore.auth.boto3.Boto3CredentialProvider()"
        )
    taken = {ours: found[theirs] for theirs, ours in _KEYS.items() if theirs in found}
    if "region" in found and not environ.get("AWS_REGION"):
        taken["region"] = found["region"]
    return taken


def _read(path: str, files: Files) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    path = os.path.expanduser(path)
    try:
        if not files.exists(path):
            return parser
        if files.size(path) > _FILE_MAX_BYTES:
            raise InvalidArgumentError(f"{path} is too large for a file of AWS profiles")
        parser.read_string(files.read_all(path).decode())
    except (configparser.Error, UnicodeDecodeError):
        # The parser's own message would show the line, which may contain a key.
        raise InvalidArgumentError(f"{path} is not a valid file of AWS profiles: correct it") from None
    except StorageError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error}") from None
    return parser
