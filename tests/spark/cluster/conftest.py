"""The cluster that the tests of this folder share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.cluster.machines import why_not
from tests.spark.cluster.standalone import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    hidden = [tmp_path_factory.getbasetemp(), Path(tempfile.gettempdir())]
    with Cluster(tmp_path_factory.mktemp("cluster"), hidden) as cluster:
        yield cluster
