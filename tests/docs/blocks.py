"""The code blocks of the documents.

A comment on the line before a block says how it is tested:
  <!-- test: declarations -->      C++: the block stands outside a function
  <!-- test: run -->               sh: the commands run, in the order of the page
  <!-- test: file NAME -->         the block is the file NAME, or the next part of it
  <!-- test: skip REASON -->       not at all
An ellipsis in C++ stands for code that is left out, with the words between two of them.

Usage: blocks.py PAGE        prints the page's marked commands and files as one script
"""

import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\s*$")
MARKER = re.compile(r"^<!-- test: (\w+)\s*(.*?) -->$")


@dataclasses.dataclass
class Block:
    page: pathlib.Path
    line: int  # of the first line of code
    language: str
    text: str
    test: str = ""
    argument: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> "list[pathlib.Path]":
    return [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]


def blocks_of(page: pathlib.Path) -> "list[Block]":
    found = []
    block = None
    before = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if block is not None:
            if line.startswith("```"):
                found.append(block)
                block = None
            else:
                block.text += line + "\n"
        elif fence:
            marker = MARKER.match(before)
            test, argument = marker.groups() if marker else ("", "")
            if test not in ("", "declarations", "run", "file", "skip") or (test in ("skip", "file")) != bool(argument):
                raise SystemExit(f"{page}:{number - 1}: unknown marker '{before}'")
            block = Block(page, number + 1, fence[1], "", test, argument)
        before = line
    return found


def all_blocks(language: str) -> "list[Block]":
    return [block for page in pages() for block in blocks_of(page) if block.language == language]


def script_of(page: pathlib.Path) -> str:
    """The marked blocks of a page as one shell script; empty if there are none."""
    script = ""
    written = set()
    for block in blocks_of(page):
        if block.test == "run":
            script += f"echo '+ {block.place}' >&2\n{block.text}"
        elif block.test == "file":
            arrow = ">>" if block.argument in written else ">"
            written.add(block.argument)
            script += f"cat {arrow}{block.argument} <<'END OF THE BLOCK'\n{block.text}END OF THE BLOCK\n"
    return script


if __name__ == "__main__":
    print(script_of(pathlib.Path(sys.argv[1]).resolve()), end="")
