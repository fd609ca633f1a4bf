"""The lock file follows from pyproject.toml: nothing is missing, nothing is pinned to what is not allowed."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def test_every_requirement_is_locked_to_a_version_it_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(line for extra in ("test", "trackers", "bench") for line in extras[extra]),
    ]
    wanted = [Requirement(line) for line in lines]
    locked: dict[str, set[str]] = {}
    for name, version in _PIN.findall((ROOT / "requirements.lock").read_text()):
        locked.setdefault(canonicalize_name(name), set()).add(version)
    wrong = [
        f"{requirement}: locked {sorted(locked.get(canonicalize_name(requirement.name), ()))}; run `make lock`"
        for requirement in wanted
        if not any(requirement.specifier.contains(v) for v in locked.get(canonicalize_name(requirement.name), ()))
    ]
    assert wrong == []


def test_the_licence_table_names_every_locked_package():
    pins = {(name.lower(), version) for name, version in _PIN.findall((ROOT / "requirements.lock").read_text())}
    rows = re.findall(r"^\| ([a-z0-9._-]+) \| (\S+) \| (.+) \|$", (ROOT / "docs/licences.md").read_text(), re.MULTILINE)
    named = {(name, version) for name, version, _ in rows} - {("package", "version")}
    assert named == pins, "run `make sbom`"
    installed = [licence for *_, licence in rows if licence != "not installed here"]
    assert len(installed) > 0.8 * len(rows)
    assert not [licence for licence in installed if re.search(r"\b(AGPL|SSPL)\b", licence)]


def test_every_locked_package_has_its_hashes():
    text = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.strip())
    assert len(entries) > 200
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in text
