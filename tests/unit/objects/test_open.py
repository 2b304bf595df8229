"""URLs and options of a bucket: which are accepted, and the error messages for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore.store
import pytest

from nyala.env import SYSTEM
from nyala.errors import InvalidArgumentError
from nyala.objects.aws_profile import aws_profile
from nyala.objects.bucket import BucketObjects
from nyala.objects.folder import FolderObjects
from nyala.objects.open import open_objects

KEYS = {"access_key_id": "AKIA-SECRET", "secret_access_key": "very-secret"}


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the list of clients that `open_objects` creates in obstore, with their arguments."""
    found: list[tuple[str, dict[str, Any]]] = []
    for name in ("S3Store", "GCSStore", "AzureStore"):

        def make(bucket: str, name: str = name, **arguments: Any) -> object:
            found.append((name, {"bucket": bucket, **arguments}))
            return object()

        monkeypatch.setattr(obstore.store, name, make)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return found


def test_a_folder_is_opened_by_its_url(tmp_path: Path) -> None:
    objects = open_objects(f"file://{tmp_path}/my%20store")
    assert isinstance(objects, FolderObjects)
    objects.put("a", b"")
    assert (tmp_path / "my store" / "a").exists()
    assert open_objects(objects.url).get("a") == b""


@pytest.mark.parametrize(
    ("url", "options", "store", "bucket", "prefix", "config"),
    [
        ("s3://b/p/q", KEYS, "S3Store", "b", "p/q", {**KEYS, "conditional_put": "etag"}),
        ("s3://b", {"region": "eu-west-1", "endpoint": "https://x:9000"}, "S3Store", "b", None,
         {"region": "eu-west-1", "endpoint": "https://x:9000", "conditional_put": "etag"}),
        ("s3a://b/p/", {"region": None}, "S3Store", "b", "p", {"conditional_put": "etag"}),
        ("gs://b/p", {"service_account_path": "/k.json"}, "GCSStore", "b", "p", {"service_account": "/k.json"}),
        ("az://c/p", {"account_name": "a", "sas_token": "s"}, "AzureStore", "c", "p",
         {"account_name": "a", "sas_key": "s"}),
        ("abfss://c@acc.dfs.core.windows.net/p", {"account_key": "k"}, "AzureStore", "c", "p",
         {"account_name": "acc", "account_key": "k"}),
    ],
)  # fmt: skip
def test_a_url_names_provider_bucket_and_prefix(
    created: list[tuple[str, dict[str, Any]]],
    url: str,
    options: dict[str, Any],
    store: str,
    bucket: str,
    prefix: str | None,
    config: dict[str, Any],
) -> None:
    objects = open_objects(url, options)
    assert isinstance(objects, BucketObjects) and objects.url == url.rstrip("/")
    assert "secret" not in repr(objects).lower()
    assert [name for name, _ in created] == [store, store]
    for _, arguments in created:
        assert (arguments["bucket"], arguments["prefix"], arguments["config"]) == (bucket, prefix, config)
    # The first client sends each request once, for `create`.
    assert [arguments["retry_config"]["max_retries"] for _, arguments in created] == [0, 5]
    assert all("timeout" in arguments["client_options"] for _, arguments in created)


def test_a_function_alone_provides_the_credentials(created: list[tuple[str, dict[str, Any]]]) -> None:
    def provider() -> None: ...

    open_objects("s3://b/p", provider)
    assert created[0][1]["credential_provider"] is provider


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("s3://b", {"regoin": "x"}, "unknown storage option 'regoin': did you mean 'region'?"),
        ("s3://b", {"aws_access_key_id": "x"}, "did you mean 'access_key_id'?"),
        (
            "gs://b",
            {"zzz": "x"},
            "expected one of service_account_path, allow_http, credential_provider, credentials_file, timeout_s",
        ),
        ("file:///b", {"region": "x"}, "unknown storage option 'region': expected one of none"),
        ("s3://b", {"region": 5}, "'region' must be of type str, not int"),
        ("s3://b", {"allow_http": "yes"}, "'allow_http' must be of type bool, not str"),
        ("s3://b", {"timeout_s": True}, "'timeout_s' must be of type int or float, not bool"),
        ("s3://b", {"timeout_s": 0}, "'timeout_s' must be positive"),
        ("s3://b", {"credential_provider": "x"}, "'credential_provider' must be a function"),
        ("s3://b", "region=x", "must be a dict or a function, got str"),
        ("s3://b", {"access_key_id": "x"}, "pass both storage options"),
        ("s3://b", {**KEYS, "profile": "x"}, "pass only one of"),
        ("s3://b", {"endpoint": "http://x"}, "is not encrypted: use https://, or pass 'allow_http': True"),
        ("s3://b", {"endpoint": "not a url"}, "must be like https://host:port"),
        ("s3://b", {"endpoint": "https://key:very-secret@x"}, "without credentials"),
        ("s3://AKIA:very-secret@b/p", None, "credentials in storage_options"),
        ("s3:///p", None, "no valid name of a bucket"),
        ("s3://b/p?versionId=very-secret", None, "'?' or '#' is not supported"),
        ("s3://b/../p", None, "choose another prefix"),
        ("s3://b/a b", None, "choose another prefix"),
        ("ftp://b/p", None, "expected one of s3://"),
        ("/a/folder", None, "expected one of s3://"),
        ("file://host/p", None, "expected file:///folder"),
        ("az://c/p", None, "pass the storage option 'account_name'"),
        (5, None, "expected a URL, got int"),
    ],
)
def test_error_messages_contain_no_secrets(
    created: list[tuple[str, dict[str, Any]]], url: Any, options: Any, says: str
) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        open_objects(url, options)
    assert says in str(raised.value)
    assert "very-secret" not in str(raised.value) and "AKIA" not in str(raised.value)
    assert created == []


# ── profiles of the AWS command line ────────────────────────────────────────────────────────────────────────────────

CREDENTIALS = """
[default]
aws_access_key_id = dk
aws_secret_access_key = ds
[work]
aws_access_key_id = wk
aws_secret_access_key = ws
aws_session_token = wt
"""
CONFIG = """
[default]
region = eu-central-1
[profile work]
region = us-west-2
[profile sso]
sso_session = company
"""
WORK = {"access_key_id": "wk", "secret_access_key": "ws", "session_token": "wt", "region": "us-west-2"}
DEFAULT = {"access_key_id": "dk", "secret_access_key": "ds", "region": "eu-central-1"}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return {"HOME": str(tmp_path)}


def test_a_profile_gives_keys_and_region(home: dict[str, str]) -> None:
    files = SYSTEM.files
    assert aws_profile("work", home, files) == WORK
    assert aws_profile("work", {**home, "AWS_ACCESS_KEY_ID": "x"}, files) == WORK
    assert aws_profile(None, {**home, "AWS_PROFILE": "work"}, files) == WORK
    assert aws_profile(None, home, files) == DEFAULT
    assert aws_profile(None, {**home, "AWS_ACCESS_KEY_ID": "x"}, files) == {}
    assert aws_profile(None, {**home, "AWS_WEB_IDENTITY_TOKEN_FILE": "x"}, files) == {}
    assert "region" not in aws_profile("work", {**home, "AWS_REGION": "x"}, files)
    assert aws_profile(None, {"HOME": "/nowhere"}, files) == {}


@pytest.mark.parametrize(
    ("profile", "says"),
    [("wrk", "did you mean 'work'?"), ("sso", "has no keys: for roles and single sign-on pass")],
)
def test_the_error_names_a_profile_that_cannot_be_used(home: dict[str, str], profile: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says.replace("?", r"\?")):
        aws_profile(profile, home, SYSTEM.files)


def test_the_error_does_not_show_a_damaged_file(home: dict[str, str]) -> None:
    (Path(home["HOME"]) / ".aws" / "credentials").write_text("very-secret")
    with pytest.raises(InvalidArgumentError) as raised:
        aws_profile(None, home, SYSTEM.files)
    assert "very-secret" not in str(raised.value) and "is not a valid file" in str(raised.value)
