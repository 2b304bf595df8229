"""Errors of credentials, which only a real S3 server reports. `test_objects` runs over it too."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import cli_runner
from tests.unit.objects.seaweedfs import BUCKET

from nyala.cli.app import app
from nyala.errors import StorageError
from nyala.objects.open import open_objects

pytestmark = pytest.mark.s3


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("secret_access_key", "403 SignatureDoesNotMatch; the secret key is wrong: check the credentials"),
        ("access_key_id", "403 InvalidAccessKeyId; the access key does not exist: check the credentials"),
    ],
)
def test_the_error_of_wrong_credentials(real_server: dict[str, Any], option: str, says: str) -> None:
    objects = open_objects(f"s3://{BUCKET}/wrong", {**real_server, option: "another-one"})
    with pytest.raises(StorageError) as raised:
        objects.create("a", b"")
    assert says in str(raised.value) and "another-one" not in str(raised.value)
    assert raised.value.outcome is None


def test_the_error_of_a_missing_bucket(real_server: dict[str, Any]) -> None:
    with pytest.raises(StorageError, match="the bucket does not exist"):
        open_objects("s3://nowhere-at-all/store", real_server).get("a")


def test_the_probe_accepts_a_real_server(
    real_server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", real_server["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", real_server["secret_access_key"])
    where = ["--races", "3", "--option", f"endpoint={real_server['endpoint']}", "--option", "allow_http=true"]
    done = cli_runner().invoke(app, ["fs", "probe", f"s3://{BUCKET}/probe", *where])
    assert done.exit_code == 0, done.output
    print(done.stdout)
