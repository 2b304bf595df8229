"""Checks paths that users give."""

from __future__ import annotations

import os
import re
from typing import Final

from nyala.errors import InvalidArgumentError

_BUCKET_URL: Final = re.compile(r"(s3|s3a|gs|gcs|az|abfs|abfss|file)://", re.IGNORECASE)


def is_bucket_url(path: object) -> bool:
    """Whether the path is a URL of a bucket, or a file:// URL: a folder that is used like a bucket."""
    return isinstance(path, str) and _BUCKET_URL.match(path) is not None


def plain_url(url: str) -> str:
    """Return a URL with its scheme in lower case, and without extra "/" around its prefix.

    >>> plain_url("S3://bucket//shop/")
    's3://bucket/shop'
    """
    scheme, _, rest = url.partition("://")
    place, _, prefix = rest.partition("/")
    return "/".join((f"{scheme.lower()}://{place}", *filter(None, [prefix.strip("/")])))


def utf8_path(path: str | bytes) -> str:
    """Return the absolute path as text. Raises InvalidArgumentError if it is not UTF-8.

    Messages, JSON documents and Spark options could not contain a path that is not UTF-8.
    """
    text = os.path.abspath(os.fsdecode(path))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"the path {os.fsencode(text)[:400]!r} is not UTF-8: rename it, or use a symbolic link to it whose name "
            "is UTF-8"
        ) from None
    return text
