"""`nyala backup`, `nyala restore` and `nyala backups`."""

from __future__ import annotations

from pathlib import Path

import nyala

from .conftest import Example, Run


def test_backup_and_restore(run: Run, example: Example, tmp_path: Path) -> None:
    """A full and an incremental backup are restored to a new store, and one table under another
    name.
    """
    backups, new = tmp_path / "backups", tmp_path / "new"
    made = run("backup", example.path, backups, "--json").json
    names = [table["table"] for table in made["tables"]]
    assert {table["kind"] for table in made["tables"]} == {"full"} and "metrics" in names
    output = run("backup", example.path, backups)
    assert output.stdout == "" and "Nothing was written since the last backup of" in output.stderr
    with nyala.connect(example.path) as db:
        rows = db["metrics"].count()
        db["metrics"].delete(where="TRUE")
    assert "incremental" in run("backup", example.path, backups, "--table", "metrics").stdout
    assert "full" in run("backup", example.path, backups, "--full").stdout

    restored = run("restore", backups, new, "--at", made["time"], "--json").json
    assert [table["name"] for table in restored["tables"]] == names
    again = run(
        "restore", backups, new, "--table", "metrics", "--as", "then", "--at", str(made["timestamp"])
    ).stdout
    assert again.splitlines()[1].split()[:2] == ["then", f"{rows:,}"]
    with nyala.connect(new, read_only=True) as db:
        assert db["metrics"].count() == db["then"].count() == rows

    listed = run("backups", "list", backups).stdout.splitlines()
    assert len(listed) == 2 + 2 * len(names) and listed[1].endswith("yes") and "whole store" in listed[0]
    assert run("backups", "clean", backups, "--older-than", "2000-01-01").stdout == "Removed 0 backups.\n"
    assert run("backups", "clean", backups, "--older-than", "2100-01-01").stdout != "Removed 0 backups.\n"


def test_errors_name_options_of_the_command_line(run: Run, example: Example, tmp_path: Path) -> None:
    backups, new = tmp_path / "backups", tmp_path / "new"
    assert "does not exist" in run("restore", backups, new, code=1).stderr and not new.exists()
    run("backup", example.path, backups, "--table", "metrics")
    assert "name the tables to restore with --table" in run("restore", backups, new, code=1).stderr
    assert "no backup of table 'x'" in run("restore", backups, new, "--table", "x", code=1).stderr
    assert not new.exists(), "a store that got no table is removed"
    run("restore", backups, new, "--table", "metrics")
    assert "with --table and --as" in run("restore", backups, new, "--table", "metrics", code=1).stderr
    assert "--as needs exactly one --table" in run("restore", backups, new, "--as", "y", code=2).stderr
    assert "is inside the store's folder" in run("backup", example.path, example.path / "b", code=1).stderr
    output = run("backup", example.path, backups, "--backup-option", "region=x", code=2).stderr
    assert "--backup-option is only for a bucket" in output
    assert "there is no Nyala store" in run("backup", tmp_path / "nowhere", backups, code=1).stderr
