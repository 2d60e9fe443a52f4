#!/usr/bin/env python3
"""Builds the site of the documents with mkdocs and its theme material. A link that leads nowhere is an error.

Usage: site.py OUT       needs `pip install mkdocs-material`, or LOCKSTEP_DOCS_PYTHON=$(tests/docs/packages.sh)
"""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SECTIONS = {
    "Start": "docs/start/*.md",
    "Users": "docs/users/*.md",
    "Admins": "docs/admins/*.md",
    "Examples": "examples/*/README.md",
    "Contributors": "docs/contributors/*.md",
    "Design": "docs/design/*.md",
    "Measurements": "docs/benchmarks/*.md",
    "About": "docs/*.md",
}
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")


def pages() -> "dict[str, list[pathlib.Path]]":
    found = {name: sorted(ROOT.glob(pattern)) for name, pattern in SECTIONS.items()}
    found["About"] += [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
    return found


def copy(page: pathlib.Path, tree: pathlib.Path) -> None:
    """The page, and the files that it links to, at the same places as in the repository."""
    linked = [(page.parent / link).resolve() for link in LINK.findall(page.read_text())]
    for file in [page, *linked]:
        target = tree / file.relative_to(ROOT)
        if file.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: site.py OUT", file=sys.stderr)
        return 2
    python = os.environ.get("LOCKSTEP_DOCS_PYTHON", sys.executable)
    if python == sys.executable and importlib.util.find_spec("material") is None:
        print("site.py: Python does not find mkdocs-material: pip install mkdocs-material", file=sys.stderr)
        return 77
    out = pathlib.Path(sys.argv[1]).resolve()
    tree = out.with_name(out.name + "-pages")
    shutil.rmtree(tree, ignore_errors=True)
    sections = pages()
    for page in [ROOT / "README.md", *(page for section in sections.values() for page in section)]:
        copy(page, tree)
    names = {title: [page.relative_to(ROOT).as_posix() for page in section] for title, section in sections.items()}
    navigation = ["README.md", *({title: section} for title, section in names.items() if section)]
    config = tree.with_suffix(".yml")
    # A JSON text is YAML too.
    settings = {"INHERIT": str(ROOT / "docs/mkdocs.yml"), "docs_dir": str(tree), "site_dir": str(out), "nav": navigation}
    config.write_text(json.dumps(settings))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["NO_MKDOCS_2_WARNING"] = "1"
    return subprocess.run([python, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)],
                          env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
