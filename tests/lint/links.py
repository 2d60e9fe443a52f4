#!/usr/bin/env python3
"""Every link between the documents leads to a file and a heading that exist, and no cell of a table has more than five.

Usage: links.py [FOLDER]      without one: the whole tree
"""

import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@functools.cache
def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        count = 0
        while (name if count == 0 else f"{name}-{count}") in found:
            count += 1
        found.add(name if count == 0 else f"{name}-{count}")
    return found


def problems(page):
    text = CODE.sub("", page.read_text())
    for cell in re.findall(r"(?<=\|)[^|\n]*(?=\|)", text):
        if len(LINK.findall(cell)) > 5:
            yield f"a cell has more than five links: {cell.strip()[:60]}"
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield f"{link} does not exist"
        elif anchor and anchor not in anchors(target):
            yield f"{link}: {target.name} has no heading with this anchor"


def main():
    pages = [page for page in sorted(ROOT.rglob("*.md")) if page.relative_to(ROOT).parts[0] != "build"]
    wrong = [f"{page.relative_to(ROOT)}: {problem}" for page in pages for problem in problems(page)]
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
