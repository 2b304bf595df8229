"""The plan by which a job's task finds the tablet of each row, read from the catalogue."""

from __future__ import annotations

import os

from nyala.catalog.loading import read_catalogue
from nyala.env import Env
from nyala.objects.address import bucket_of
from nyala.tablet.jobs.load_job import LoadPlan
from nyala.tablet.jobs.staged_files import routing_plan_of
from nyala.tablet.state import store_folder as layout
from nyala.wal.position import read_position


def routing_plan(env: Env, path: str, name: str) -> LoadPlan:
    """Return the schema and tablets of the table `name` in the store at `path`, a folder or URL.

    Cost: reads the catalogue, and the log since the last checkpoint.
    Raises: StorageError if there is no store; TableNotFoundError.
    """
    bucket = bucket_of(env)
    if bucket is not None:
        from nyala.tablet.media.bucket_reader import read_state

        return routing_plan_of(read_state(env, bucket), path, name)
    path = os.path.abspath(path)
    layout.require_store(env, path)
    position = read_position(env.files, layout.position_path(path))
    upto = None if position is None else position.position
    state, _ = read_catalogue(env, path, layout.wal_path(path), upto)
    return routing_plan_of(state, path, name)
