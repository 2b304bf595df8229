"""`nyala fs check`: is the store what it should be, and what can be mended?"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import click

from nyala.cli.base import Group, settings
from nyala.cli.output import counted, duration, echo_json, size
from nyala.cli.progress import Bar
from nyala.cli.tables import folder_argument

if TYPE_CHECKING:
    from nyala.tablet.check import CheckReport

__all__ = ["EXIT_PROBLEMS", "fs"]

EXIT_PROBLEMS: Final = 3


@click.group(cls=Group)
def fs() -> None:
    """The store's files."""


@fs.command("check")
@folder_argument
@click.option("--repair", is_flag=True, help="Mend what can be mended without a loss, and say what was done.")
@click.pass_context
def check(context: click.Context, folder: str, repair: bool) -> None:
    """Read every byte and hold every rule against it. Exit code 3: there are problems."""
    from nyala.env import SYSTEM
    from nyala.tablet.check import check_folder
    from nyala.tablet.repair import repair_folder

    began_s = time.monotonic()
    with Bar("checking rowsets", 1.0, quiet=settings().json) as bar:

        def step(done: int, total: int) -> None:
            bar.update(done / max(total, 1), f"{done:,} of {total:,}")

        report = (repair_folder if repair else check_folder)(SYSTEM, os.path.abspath(folder), step)
    seconds = time.monotonic() - began_s
    if settings().json:
        document = report.to_dict()
        echo_json({"store": document.pop("path"), **document, "seconds": round(seconds, 3)})
    else:
        _tell(report, seconds, repair)
    if not report.ok:
        context.exit(EXIT_PROBLEMS)


def _tell(report: CheckReport, seconds: float, repair: bool) -> None:
    for repaired in report.repairs:
        click.echo(f"repaired: {repaired}")
    for problem in report.problems:
        where = "" if problem.table is None else f" (table {problem.table}, tablet {problem.tablet_id})"
        click.echo(f"{problem.kind}: {problem.message}{where}")
    for note in report.notes:
        click.echo(f"note: {note}")
    click.echo(
        f"{counted(report.tables, 'table')}, {counted(report.tablets, 'tablet')}, {counted(report.rowsets, 'rowset')}, "
        f"{counted(report.files, 'file')} with {size(report.bytes)}, {counted(report.rows, 'row')} on disk, "
        f"{counted(report.log_records, 'record')} in the log: "
        + ("no problems" if report.ok else counted(len(report.problems), "problem"))
    )
    click.echo(f"Done in {duration(seconds)}.", err=True)
    if report.ok:
        return
    mended = sum(problem.repairable for problem in report.problems)
    if mended and not repair:
        click.echo(f"--repair mends {mended:,} of them without a loss.", err=True)
    if mended < len(report.problems):
        click.echo("What is damaged can be brought back from a backup only.", err=True)
