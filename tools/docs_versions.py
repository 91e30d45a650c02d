"""Puts a built site among those of other versions: `docs_versions.py SITES SITE VERSION`.

SITES is a folder with a site for each version, the branch that is published. It gets the folder
VERSION, and `latest` is a copy of the newest version that was released; `dev` is no release.
`versions.json` is what the menu of versions on each page reads, as mike writes it.
"""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

RELEASE = re.compile(r"\d+(\.\d+)*")
DEV = "dev"
LATEST = "latest"
TO_LATEST = """\
<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={where}/">
<title>turngap</title>
<a href="{where}/">The documentation of turngap</a>
"""


def add(sites: Path, site: Path, version: str) -> None:
    """Put `site` into `sites` as that of `version`, in place of the one that was there.

    Raises:
        SystemExit: the version or a folder cannot be used. Then nothing has changed.
    """
    if version != DEV and not RELEASE.fullmatch(version):
        raise SystemExit(f"docs_versions: {version!r} is neither {DEV} nor a version, such as 0.1")
    if not (site / "index.html").is_file():
        raise SystemExit(f"docs_versions: {site} holds no site: build it with tools/docs_site.py")
    known = [each["version"] for each in _known(sites / "versions.json")]
    versions = sorted({*known, version}, key=_order, reverse=True)
    newest = next((each for each in versions if each != DEV), None)
    _replace(sites / version, site)
    if newest == version:
        _replace(sites / LATEST, site)
    listed = [
        {"version": each, "title": each, "aliases": [LATEST] if each == newest else []}
        for each in versions
    ]
    (sites / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    where = LATEST if newest else version
    (sites / "index.html").write_text(TO_LATEST.format(where=where), encoding="utf-8")
    (sites / ".nojekyll").touch()  # GitHub would leave out what begins with an underscore


def _known(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def _order(version: str) -> tuple[int, ...]:
    """Later versions last, and `dev` after all."""
    return (sys.maxsize,) if version == DEV else tuple(map(int, version.split(".")))


def _replace(there: Path, site: Path) -> None:
    shutil.rmtree(there, ignore_errors=True)
    shutil.copytree(site, there)


def main() -> None:
    """Add a version."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sites", type=Path)
    parser.add_argument("site", type=Path)
    parser.add_argument("version")
    asked = parser.parse_args()
    add(asked.sites, asked.site, asked.version)


if __name__ == "__main__":
    main()
