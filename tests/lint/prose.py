#!/usr/bin/env python3
"""Finds constructions that engineers from everywhere must read twice: in comments, messages and documents.

Usage: prose.py [FILE OR FOLDER...]    without any: the whole tree. A line that must stay ends with "prose: ok".
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUFFIXES = (".h", ".cpp", ".md", ".py", ".sh", ".cmake", ".txt", ".json", ".yml", ".conf", ".service", ".timer")
SKIPPED = ("tests/lint/prose.py", "tests/data/")

RULES = [
    (r"(?<!there )(?<!There )\b(?:is|are|was|were|be) no (?!longer|more|less|fewer|such|one|other|need|way|room|reason|match|matter|earlier|"
     r"later|better|worse|greater|smaller|larger)[a-z]", 'write "is not a ..." or "there is no ..."'),
    (r"\bbehind (?:it|them|the|each|this|that|one|another|us)\b", '"after", unless it lies behind in space'),
    (r"(?:^|[.;:(] |// |/// |# |\")(?:[Ww]ho|[Ww]hoever) (?![?])[a-z]+s? (?!\?)(?![^.]*\?)",
     'begin with a noun: "a user who ...", "the rank that ..."'),
    (r"(?:^(?!#)|[.;:] |// |/// |(?<!^)(?<!#)# |\")What (?!to |is new|it |you |each |the )[a-z]+ [^?]*$",
     'begin with a noun instead of "What ..."'),
    (r"\b(?:has|have|had) not\b(?! (?:been|yet|to)\b)(?! \w+(?:ed|en|un|wn|ne|ut|et|ad|id|nt)\b)", '"does not have"'),
    (r"\b(?:is|are|was|were) to be\b", '"must be", "will be" or "should be"'),
    (r"\bof which\b|, (?:in|from|by|for|to|with|at|on) which\b", 'two sentences instead of "... which"'),
    (r"\bthe (?:most|least)\b(?! (?:recent|common|significant|likely|useful|of the))", '"the maximum", "at most", "the largest"'),
    (r"\b(?:for|by) (?:itself|themselves|himself|oneself)\b", '"alone", "separately" or "automatically"'),
    (r"\bof (?:our|its|their|his) own\b(?= (?:accord|doing))", "plain words"),
    (r"\b(?:thereof|therein|whereof|wherein|whereby|hereby|thereby|whence|thence|hitherto)\b", "plain words"),
    (r"\bnothing (?:comes|follows|is|lies) behind\b", '"is the last"'),
    (r"\bnone (?:for|where) (?:who|what)\b", '"returns nullopt if ..."'),
    (r"\bis it well\b", "say what to check"),
    (r"\bany more\b", '"no longer", or leave it out'),
    (r"\b(?:go|goes|going|went) on from\b", '"continues from"'),
    (r"\b(?:look|looks|looked) again\b", 'say what is read or checked again'),
    (r"\b[Mm]akes? (?:them )?alike\b", '"synchronises"'),
]
# A name says what it holds. These are pronouns without a noun.
NAME = re.compile(r"(?<!return)(?<!else)(?<!throw)(?<=[\w>&*]) (?:here|there|given|told|gone|owed)\b\s*(?:=(?!=)|[;{,)])")
NAMES_LATER = ("staging/step/", "staging/transfer/", "tests/unit/staging/", "tests/unit/runtime/comm/")
COMPILED = [(re.compile(pattern), advice) for pattern, advice in RULES]

C_TEXT = re.compile(r'//.*$|"(?:[^"\\]|\\.)*"')
HASH_TEXT = re.compile(r'#.*$|"""|"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')


def files(arguments: "list[str]"):
    paths = arguments or ["."]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, capture_output=True, text=True,
    )
    names = listed.stdout.split("\n")
    if listed.returncode != 0:  # an unpacked release
        roots = [ROOT / path for path in paths]
        names = [
            file.relative_to(ROOT).as_posix()
            for root in roots
            for file in ([root] if root.is_file() else root.rglob("*"))
            if file.relative_to(ROOT).parts[0] != "build"
        ]
    for name in sorted(set(names)):
        if name.endswith(SUFFIXES) and not name.startswith(SKIPPED) and (ROOT / name).is_file():
            yield name


def texts(name: str):
    """What a reader reads of each line: (number, text)."""
    in_code_block = False
    in_docstring = False
    for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
        if line.rstrip().endswith("prose: ok"):
            continue
        if name.endswith(".md"):
            if line.lstrip().startswith("```"):
                in_code_block = not in_code_block
            elif not in_code_block:
                yield number, line
        elif name.endswith((".h", ".cpp")):
            yield number, " ".join(C_TEXT.findall(line))
        elif name.endswith((".json", ".service", ".timer")):
            yield number, line
        elif name.endswith(".txt") and not name.endswith("CMakeLists.txt"):
            yield number, line
        else:
            quotes = line.count('"""')
            if in_docstring or quotes:
                yield number, line
                in_docstring = in_docstring != (quotes % 2 == 1)
            else:
                yield number, " ".join(HASH_TEXT.findall(line))


def main() -> int:
    found = 0
    seen = 0
    for name in files(sys.argv[1:]):
        seen += 1
        if name.endswith((".h", ".cpp")) and not name.startswith(NAMES_LATER):
            for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
                if match := NAME.search(C_TEXT.sub("", line)):
                    print(f"{name}:{number}: the name '{match[0].split()[0].strip('=;{,)')}': say what it holds", file=sys.stderr)
                    found += 1
        for number, text in texts(name):
            for pattern, advice in COMPILED:
                match = pattern.search(text)
                if match:
                    print(f"{name}:{number}: '{match[0].strip()}': {advice}", file=sys.stderr)
                    found += 1
    if seen == 0:
        print("prose.py: no file to read", file=sys.stderr)
    return 1 if found or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
