"""The files of an open-source project agree with each other: license, changelog, workflows and issue forms."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

import nyala

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: make setup")
ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [ROOT / ".github" / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")]


def pythons() -> list[str]:
    """Return the releases of Python that the classifiers name, oldest first."""
    names = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["project"]["classifiers"]), re.MULTILINE)
    return sorted(names, key=lambda name: int(name[2:]))


def read(path: Path) -> dict[str, Any]:
    """Return a YAML file. YAML 1.1 reads `on` without quotes as True; GitHub does not."""
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict), path
    return {"on" if key is True else key: value for key, value in found.items()}


def test_license_text_and_metadata_agree() -> None:
    """The text is Apache 2.0, the metadata has its SPDX expression, and no classifier repeats it."""
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert (PROJECT["project"]["license"], PROJECT["project"]["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert not [name for name in PROJECT["project"]["classifiers"] if name.startswith("License")]
    assert "Apache-2.0" in (ROOT / "README.md").read_text()


def test_every_file_names_the_same_repository() -> None:
    """This test shows a fork all places where it must change the address."""
    address = PROJECT["project"]["urls"]["Repository"]
    files = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    found = {
        path.name: set(re.findall(r"https://github\.com/[\w-]+/nyala", path.read_text())) for path in files
    }
    assert {name: urls for name, urls in found.items() if urls - {address}} == {}


def test_classifiers_begin_with_the_lowest_python() -> None:
    """`requires-python` is the first of consecutive releases."""
    names = pythons()
    assert PROJECT["project"]["requires-python"] == f">={names[0]}"
    assert names == [f"3.{number}" for number in range(int(names[0][2:]), int(names[-1][2:]) + 1)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_what_github_requires(path: Path) -> None:
    """Events, few permissions, and jobs with a machine, a time limit and steps that each do one thing."""
    workflow = read(path)
    assert set(workflow) <= {"name", "on", "permissions", "concurrency", "jobs"}
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert isinstance(job["timeout-minutes"], int), name
        assert job["runs-on"] == "ubuntu-latest" or job["strategy"]["matrix"]["os"], name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert re.fullmatch(r"[\w-]+(/[\w-]+)+@(v\d+(\.\d+)*|release/v1)", step.get("uses", "a/b@v1")), (
                step
            )
        for needed in job.get("needs", []):
            assert needed in workflow["jobs"], needed


def test_the_matrix_has_every_supported_python_on_linux_and_macos() -> None:
    job = read(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == pythons()
    assert [system.partition("-")[0] for system in job["strategy"]["matrix"]["os"]] == ["ubuntu", "macos"]
    assert any(step.get("run", "").startswith("make test") for step in job["steps"])


def test_wheels_are_built_for_every_supported_python() -> None:
    """They have compiled kernels. Only a tag publishes a release."""
    settings = PROJECT["tool"]["cibuildwheel"]
    assert settings["build"].split() == [f"cp{name.replace('.', '')}-*" for name in pythons()]
    assert settings["environment"]["NYALA_BUILD_KERNELS"] == "yes"
    workflow = read(ROOT / ".github" / "workflows" / "wheels.yml")
    publish = workflow["jobs"]["publish"]
    assert workflow["on"]["push"] == {"tags": ["v*"]}
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert publish["permissions"] == {"id-token": "write"}
    assert sorted(publish["needs"]) == ["sdist", "wheels"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_what_github_requires(path: Path) -> None:
    """A name, a description, and fields with unique ids and labels. At least one field is required."""
    form = read(path)
    assert form["name"] and form["description"]
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in fields} <= {"textarea", "input"}
    for values in ([part["id"] for part in fields], [part["attributes"]["label"] for part in fields]):
        assert len(values) == len(set(values))
    assert any(part.get("validations", {}).get("required") for part in fields)


def test_the_issue_chooser_leads_to_the_private_report() -> None:
    """A security problem must not be reported in public."""
    config = read(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml")
    for link in config["contact_links"]:
        assert set(link) == {"name", "url", "about"}
    assert any(link["url"].endswith("/security/advisories/new") for link in config["contact_links"])


def test_the_changelog_has_this_version() -> None:
    """Its headings are those of Keep a Changelog. The present version has an entry or is unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", text, re.MULTILINE)
    assert versions[0][0] == "Unreleased"
    for version, date in versions[1:]:
        assert re.fullmatch(r"\d+\.\d+\.\d+", version) and re.fullmatch(r"\d{4}-\d\d-\d\d", date)
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    unreleased = text.split("## [Unreleased]")[1].split("\n## [")[0]
    assert nyala.__version__ in unreleased or nyala.__version__ in [version for version, _ in versions]
    for version, _ in versions:
        assert f"\n[{version}]: https://" in text


def test_every_tracked_file_is_text() -> None:
    """A test that leaves a store in the checkout could let it be committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]
    assert len(paths) > 500
    assert [path for path in paths if b"\0" in path.read_bytes()] == []
