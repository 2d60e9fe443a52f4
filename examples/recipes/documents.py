"""Reads the texts of files: JSON lines (.jsonl, .jsonl.gz), a column of a table (.csv, .tsv), or each file a text. Needs
Python 3.9 and no packages.

A line without a text ends the program with one message that names the file and the line.
"""

import csv
import gzip
import json
import sys

MARK = b"\xef\xbb\xbf"  # some programs write this byte order mark first


def documents_of(path: str, field: str):
    if path.endswith((".jsonl", ".jsonl.gz", ".ndjson")):
        return of_json_lines(path, field)
    if path.endswith((".csv", ".tsv")):
        return of_table(path, field)
    return of_text(path)


def of_json_lines(path: str, field: str):
    number = 0
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if number == 1:
                    line = line.removeprefix(MARK)
                if not line.strip():
                    continue
                try:
                    text = json.loads(line.decode())[field]
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise SystemExit(f"{path}:{number}: no JSON object with '{field}': {error}")
                yield checked(text, f"{path}:{number}", field)
    except (OSError, EOFError) as error:  # also a damaged .gz
        raise SystemExit(f"{path}: cannot be read after line {number}: {error}")


def of_table(path: str, field: str):
    csv.field_size_limit(sys.maxsize)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t" if path.endswith(".tsv") else ",", strict=True)
            try:
                if field not in (rows.fieldnames or []):
                    raise SystemExit(f"{path}:1: no column '{field}': the columns are {', '.join(rows.fieldnames or [])}")
                for row in rows:
                    yield checked(row[field], f"{path}:{rows.line_num}", field)
            except (csv.Error, UnicodeDecodeError) as error:
                raise SystemExit(f"{path}:{rows.line_num + 1}: not a row of a table: {error}")
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}")


def of_text(path: str):
    try:
        with open(path, encoding="utf-8-sig") as file:
            yield file.read()
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}")
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path}: not a text in UTF-8: {error}")


def checked(text, where: str, field: str) -> str:
    if not isinstance(text, str):
        name = "null" if text is None else type(text).__name__
        raise SystemExit(f"{where}: '{field}' must be a text, not {name}: remove the line, or choose another --field")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a character, as "\ud83d"
        raise SystemExit(f"{where}: '{field}' is not a text: {error}")
    return text
