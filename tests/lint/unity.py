#!/usr/bin/env python3
"""Finds names that two sources of one library or program define in their unnamed namespaces, and functions there that hide
one of common/ which another source calls. The preset `user` compiles such sources as one file, where each of these names is
an error that no other build shows.

Usage: unity.py [ROOT]
"""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
TARGET = re.compile(r"(?:lockstep_library|lockstep_program|lockstep_spank_module|add_library|add_executable)\(([^()]*)\)")
BLOCK = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.S | re.M)
TYPE = re.compile(r"(?:struct|class|union|enum(?: class)?) (?:\[\[\w+\]\] )?(\w+)[^;]*\{", re.S)
FUNCTION = re.compile(r"(?:[\w:<>,&*\[\]. ]|\n)*?[\w>&*\]] ?[&*]*\b(\w+)\(([^;{]*)\)[^(){};]*(?=\{)")
VARIABLE = re.compile(r"(?!using|template|return|namespace)(?:[\w:<>,*& ]|\[\[\w+\]\])+[ *&](\w+)(?:\[\w*\])? ?(?:=|\{|;)")


def declarations(block):
    """The text of each declaration: clang-format lets it begin in the first column and indents the rest."""
    text = re.sub(r"//.*|^#.*", "", block, flags=re.M)
    for part in re.split(r"^(?=[\w\[])", text, flags=re.M):
        yield re.sub(r"^template <[^\n]*>\n", "", part)


def types_of(parameters):
    """`const Path& file, int n = 0` -> `const Path&,int`."""
    depth, parts = 0, [""]
    for letter in parameters:
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return ",".join(re.sub(r"(?<=[&*> \w])\b\w+$", "", part.split("=")[0].strip()).strip() for part in parts)


def names(path):
    for block in BLOCK.findall(path.read_text()):
        for text in declarations(block):
            if match := TYPE.match(text):
                yield match[1]
            elif match := FUNCTION.match(text):
                yield f"{match[1]}({types_of(' '.join(match[2].split()))})"
            elif match := VARIABLE.match(text):
                yield match[1]


def targets():
    for lists in sorted(ROOT.rglob("CMakeLists.txt")):
        if lists.relative_to(ROOT).parts[0] in ("build", "tests"):
            continue
        for call in TARGET.findall(re.sub(r"#.*", "", lists.read_text())):
            sources = [lists.parent / word for word in call.split() if word.endswith(".cpp")]
            yield call.split()[0], [source for source in sources if source.is_file()]


COMMON = re.compile(r"^(?! )(?:inline |constexpr )*[\w:<>,&* ]+[\w>&*] ?[&*]*\b(\w+)\([^;{]*\)[^;{]*[;{]", re.M)
of_common = {name for header in (ROOT / "common").rglob("*.h") for name in COMMON.findall(header.read_text())}


def hidden(files):
    """Functions of common/ that a source of the target hides from another one: (name, hiding file, calling file)."""
    texts = {file: file.read_text() for file in files}
    for file in files:
        for name in {name.split("(")[0] for name in names(file) if "(" in name} & of_common:
            for other, text in texts.items():
                if other != file and re.search(rf"(?<![\w.:>]){name}\(", text):
                    yield name, file.relative_to(ROOT).as_posix(), other.relative_to(ROOT).as_posix()


found = sources = 0
for target, files in targets():
    where = collections.defaultdict(set)
    for file in files:
        sources += 1
        for name in names(file):
            where[name].add(file.relative_to(ROOT).as_posix())
    for name, places in sorted(where.items()):
        if len(places) > 1:
            found += 1
            print(f"{target}: {name} is defined in {' and '.join(sorted(places))}: name one of them differently")
    for name, hiding, caller in sorted(hidden(files)):
        found += 1
        print(f"{target}: {name} in {hiding} hides the function of common/ that {caller} calls: name it differently")
if sources < 2:
    sys.exit(f"unity.py: found no sources in {ROOT}")
sys.exit(1 if found else 0)
