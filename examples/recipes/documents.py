"""Reads the texts of files: JSON lines or one list of objects (.json, .jsonl, .ndjson), a column of a table (.csv, .tsv), or
each file a text; also compressed (.gz, .bz2, .xz), and with endings in capitals. Needs Python 3.9 and no packages.

A line without a text ends the program with one message that names the file and the line.
"""

import bz2
import csv
import gzip
import json
import lzma
import os
import re
import sys
import zlib

PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
JSON = (".json", ".jsonl", ".ndjson", ".jsonlines", ".jl")
TABLES = {".csv": ",", ".tsv": "\t", ".tab": "\t"}


def documents_of(path: str, field: str):
    name, ending = os.path.splitext(path.lower())
    packed = PACKED.get(ending)
    if packed:
        ending = os.path.splitext(name)[1]
    lines = lines_of(path, packed or open, newline="" if ending in TABLES else None)
    if ending in JSON:
        return of_json(path, lines, field)
    return of_table(path, lines, field, TABLES[ending]) if ending in TABLES else of_text(path, lines)


def lines_of(path: str, opener, newline: "str | None"):
    """Bytes that are not UTF-8 become surrogates, so that the line with them can be named."""
    number = 0
    try:
        if opener is not open and os.path.getsize(path) == 0:
            raise EOFError("the file is empty")
        with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=newline) as lines:
            for number, line in enumerate(lines, 1):
                yield line
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:  # also a damaged .gz
        raise SystemExit(f"{path}: cannot be read after line {number}: {getattr(error, 'strerror', None) or error}")


def of_json(path: str, lines, field: str):
    first = True
    for number, line in enumerate(lines, 1):
        line = line.strip().lstrip("\ufeff")  # a byte order mark inside the file, if several were joined
        if first and line.startswith("["):
            for element, value in enumerate(loaded(path, number, f"{line}\n{''.join(lines)}"), 1):
                yield text_of(value, f"{path}, element {element}", field)
        elif line:
            yield text_of(loaded(path, number, line), f"{path}:{number}", field)
        first = first and not line


def loaded(path: str, number: int, text: str):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SystemExit(f"{path}:{number + getattr(error, 'lineno', 1) - 1}: not JSON: {getattr(error, 'msg', error)}: write an "
                         "object in each line (jq -c .), or one list of objects")


def text_of(value, where: str, field: str) -> str:
    if not isinstance(value, dict) or field not in value:
        raise SystemExit(f"{where}: no JSON object with '{field}': choose another --field, or remove it")
    return checked(value[field], where, field)


def of_table(path: str, lines, field: str, separator: str):
    rows = rows_of(path, lines, separator)
    number, names = next(rows, (1, []))
    if (count := names.count(field)) != 1:
        named = f"{count} columns are named '{field}'" if count else f"no column '{field}'"
        raise SystemExit(f"{path}:{number}: {named}: the columns are {str(names)[1:-1][:1000]}")
    for number, row in rows:
        if len(row) != len(names):
            raise SystemExit(f"{path}:{number}: {len(row)} cells, but {len(names)} columns: put a cell that contains the separator, "
                             "a quote or a line end in double quotes")
        yield checked(row[names.index(field)], f"{path}:{number}", field)


def rows_of(path: str, lines, separator: str):
    """The number of its first line and the cells of each row that is not blank."""
    csv.field_size_limit(sys.maxsize)
    rows = csv.reader(lines, delimiter=separator, strict=True)
    number = 1
    try:
        for row in rows:
            if "".join(row).strip():
                yield number, row
            number = rows.line_num + 1
    except csv.Error as error:
        raise SystemExit(f"{path}:{number}: not a row of a table: {error}")


def of_text(path: str, lines):
    text = "".join(lines)
    if wrong := re.search("[\0\ud800-\udfff]", text):
        raise SystemExit(f"{path}:{text.count(chr(10), 0, wrong.start()) + 1}: not a text in UTF-8: unpack or convert it first; give "
                         "a folder of Parquet or Arrow to --dataset")
    yield text


def checked(text, where: str, field: str) -> str:
    if not isinstance(text, str):
        name = "null" if text is None else type(text).__name__
        raise SystemExit(f"{where}: '{field}' must be a text, not {name}: remove the line, or choose another --field")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a character, as "\ud83d", or bytes of another encoding
        raise SystemExit(f"{where}: '{field}' is not a text in UTF-8: character {error.start + 1} is wrong")
    return text
