#!/usr/bin/env python3
"""Writes one C++ source with every C++ block of the documents: each in a namespace of its own, and in a function unless
it has a main or is marked as declarations. The names that a page leaves to its reader come from names.h.

Usage: cpp_blocks.py OUT.cpp                the blocks of all pages
       cpp_blocks.py OUT.cpp PAGE.md        the one block of this page that has a main, as printed
"""

import pathlib
import re
import sys

import blocks

INCLUDE = re.compile(r"^\s*#include .*$", re.MULTILINE)
OMITTED = re.compile(r"…[^…\n{}();]*…|…")


def source_of(block: blocks.Block, number: int) -> "tuple[list[str], str]":
    includes = INCLUDE.findall(block.text)
    code = OMITTED.sub(";", INCLUDE.sub("", block.text))
    if block.test != "declarations" and "int main(" not in code:
        code = f"int fragment() {{\n#line {block.line} \"{block.page}\"\n{code}return 0;\n}}\n"
    else:
        code = f"#line {block.line} \"{block.page}\"\n{code}"
    return includes, f"namespace block_{number} {{\n{code}}}  // namespace block_{number}\n"


def write_program(page: str) -> str:
    programs = [block for block in blocks.blocks_of(pathlib.Path(page).resolve()) if "int main(" in block.text]
    if len(programs) != 1:
        raise SystemExit(f"{page} has {len(programs)} programs instead of one")
    return f'#line {programs[0].line} "{page}"\n{programs[0].text}'


def main() -> int:
    if len(sys.argv) == 3:
        pathlib.Path(sys.argv[1]).write_text(write_program(sys.argv[2]))
        return 0
    includes = []
    bodies = []
    for number, block in enumerate(blocks.all_blocks("cpp")):
        if block.test == "skip":
            continue
        lines, body = source_of(block, number)
        includes += lines
        bodies.append(body)
    if not bodies:
        print("cpp_blocks.py: no C++ block in the documents", file=sys.stderr)
        return 1
    text = "\n".join(["#include \"tests/docs/names.h\"", *dict.fromkeys(includes), "namespace names {", *bodies, "}\n"])
    pathlib.Path(sys.argv[1]).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
