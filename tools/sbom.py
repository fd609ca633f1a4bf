"""The packages of requirements.lock as a software bill of materials, and their licences as a table.

    python tools/sbom.py            # build/sbom.cdx.json (CycloneDX 1.6) and docs/licences.md

Versions and hashes are the lock's, licences those that the installed packages state; a package of the lock that is
not installed here (it is for another platform or extra) has none.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_UNKNOWN = "not installed here"
_LONG = 60  # characters; a licence field that is longer holds the text of the licence


@dataclass(frozen=True, slots=True)
class Package:
    """One pin of the lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    licence: str

    @property
    def purl(self) -> str:
        """Package URL, the name that vulnerability databases use."""
        return f"pkg:pypi/{self.name}@{self.version}"


def locked_packages() -> list[Package]:
    """Every pin of the lock, in its order; a package may have one for each Python version."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", (ROOT / "requirements.lock").read_text().strip())
    found = []
    for entry in entries:
        match = _PIN.match(entry)
        if match:
            name, version = match.groups()
            found.append(Package(name.lower(), version, tuple(_HASH.findall(entry)), licence_of(name)))
    return found


def licence_of(name: str) -> str:
    """What the installed package says: its expression, else its classifiers, else a short licence field."""
    try:
        stated = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return _UNKNOWN
    classifiers = [
        line.rpartition(" :: ")[2] for line in stated.get_all("Classifier", []) if line.startswith("License :: ")
    ]
    field = (stated["License"] or "").strip()
    short = field if field and "\n" not in field and len(field) <= _LONG else ""
    return stated["License-Expression"] or ", ".join(classifiers) or short or "stated in its files only"


def bill(packages: list[Package]) -> dict[str, Any]:
    """CycloneDX 1.6 as JSON: this project and everything it is installed with. No time and no random number in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": project["name"],
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": package.purl,
                "name": package.name,
                "version": package.version,
                "purl": package.purl,
                "licenses": [{"license": {"name": package.licence}}],
                # One for each wheel and archive of this version; which of them is installed depends on the platform.
                "properties": [{"name": "relax:sha256", "value": digest} for digest in package.hashes],
            }
            for package in packages
        ],
    }


def table(packages: list[Package]) -> str:
    """The licences as Markdown: how many of each, then every package."""
    counts = Counter(package.licence for package in packages)
    lines = [
        "# Licences",
        "",
        "Written by `make sbom` from requirements.lock. The project itself is under Apache-2.0.",
        "",
    ]
    lines += ["| licence | packages |", "|---|---|"]
    lines += [f"| {licence} | {count} |" for licence, count in sorted(counts.items(), key=lambda item: -item[1])]
    lines += ["", "| package | version | licence |", "|---|---|---|"]
    lines += [f"| {package.name} | {package.version} | {package.licence} |" for package in packages]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bill", type=Path, default=ROOT / "build" / "sbom.cdx.json")
    parser.add_argument("--table", type=Path, default=ROOT / "docs" / "licences.md")
    options = parser.parse_args()
    packages = locked_packages()
    options.bill.parent.mkdir(parents=True, exist_ok=True)
    options.bill.write_text(json.dumps(bill(packages), indent=1) + "\n")
    options.table.write_text(table(packages))
    print(f"{len(packages)} packages in {options.bill} and {options.table}")


if __name__ == "__main__":
    main()
