#!/usr/bin/env python3
"""Writes one C++ source with every C++ block of the documents: each in a namespace of its own, and in a function unless
it has a main or is marked as declarations. The names that a page leaves to its reader come from names.h.

Usage: cpp_blocks.py OUT.cpp
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


def main() -> int:
    includes = []
    bodies = []
    for number, block in enumerate(blocks.all_blocks("cpp")):
        if block.test == "skip" or block.page.name == "design.md":  # the design shows a loop without its names
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
