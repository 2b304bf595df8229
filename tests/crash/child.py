"""The process that `test_kill` lets kill itself: runs the workload, says after each step that it is
acknowledged."""

from __future__ import annotations

import sys

from nyala.env import system_files
from nyala.testing.faulty_files import KillingFiles
from tests.crash.workload import DIRECT_COMMIT_BYTES, STEPS
from tests.support import open_database


def main() -> None:
    files = KillingFiles(
        system_files(), int(sys.argv[2]) or None, "after" if sys.argv[3] == "after" else "before"
    )
    db = open_database(sys.argv[1], files=files, direct_commit_bytes=DIRECT_COMMIT_BYTES)
    print("ready", files.sync_count, flush=True)
    for step in STEPS:
        step(db)
        print("done", files.sync_count, flush=True)
    db.close()


if __name__ == "__main__":
    main()
