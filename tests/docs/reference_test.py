#!/usr/bin/env python3
"""The reference pages have exactly what the code has: options, environment variables, configuration keys, metrics, alerts
and phases. Messages that a table of a page explains exist in the code."""

import os
import pathlib
import re
import sys

import blocks

ROOT = blocks.ROOT
PARTS = ("common", "plugin", "staging", "runtime", "exporters")
# Variables that one of our processes sets for another one, and that nobody else may set.
INTERNAL = {"LOCKSTEP_TEST_RESUME"}
# A file of the tree, in the pages about the design.
FILE = re.compile(r"\b(?:common|plugin|staging|runtime|exporters|tests|examples)/[\w./-]+\.(?:cpp|h|py|sh)\b")
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')

wrong = []


def compare(page, what, in_code, on_page):
    if not in_code:
        wrong.append(f"{page}: found no {what} in the code")
    for name in sorted(in_code - on_page):
        wrong.append(f"{page}: the {what} '{name}' of the code is missing")
    for name in sorted(on_page - in_code):
        wrong.append(f"{page}: the code has no {what} '{name}'")


def read(name):
    return (ROOT / name).read_text()


def sources():
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*")):
            if path.suffix in (".cpp", ".h", ".py"):
                yield path


def rows(page, header):
    """The rows of the tables of a page whose header line matches, as lists of cells."""
    found, inside = [], False
    for line in read(page).splitlines():
        if not line.startswith("|"):
            inside = False
        elif re.match(header, line):
            inside = True
        elif inside and not re.match(r"\|[ -]+\|", line):
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def codes(text):
    return re.findall(r"`([^`]+)`", text.replace(r"\|", "|"))


def names(page, header, pattern):
    return {name for row in rows(page, header) for code in codes(row[0]) for name in re.findall(pattern, code)}


def check_options():
    table = re.findall(r'\{Option::\w+, "([\w-]+)".*?"(LOCKSTEP_\w+)"', read("common/leaf/options/options.cpp"), re.DOTALL)
    page = "docs/users/slurm-options.md"
    on_page = {(codes(row[0])[0].split("=")[0][2:], codes(row[2])[0]) for row in rows(page, r"\| option \| meaning \| variable")}
    compare(page, "option and variable", set(table), on_page)


def check_configuration():
    page = "docs/admins/configuration.md"
    keys = set(re.findall(r'Key\{"(\w+)"', read("common/leaf/options/config.cpp")))
    compare(page, "key", keys, names(page, r"\| key \|", r"^(\w+)$"))
    options = {name.replace("-", "_") for name in re.findall(r'\{Option::\w+, "([\w-]+)"', read("common/leaf/options/options.cpp"))}
    section = read(page).split("## Values of options")[1].split("\n## ")[0]
    for name in options - {"stage"}:
        if f"`{name}`" not in section:
            wrong.append(f"{page}: the default '{name}' is missing")
    sample = set(re.findall(r"^#?(\w+) = ", read("plugin/spank/options/lockstep.conf.in"), re.MULTILINE))
    for name in sorted(keys - sample - {"enabled"}):
        wrong.append(f"plugin/spank/options/lockstep.conf.in: the key '{name}' is missing")


def check_environment():
    page = "docs/users/environment.md"
    in_code = set()
    for path in sources():
        text = path.read_text()
        in_code |= set(re.findall(r'"(LOCKSTEP_[A-Z_]+)"', text))
        in_code |= set(re.findall(r'environ(?:\.get\(|\[)"(LOCKSTEP_[A-Z_]+)"', text))
    compare(page, "variable", in_code - INTERNAL, names(page, r"\| variable \|", r"^(LOCKSTEP_[A-Z_]+)$"))


def check_metrics():
    page = "docs/admins/monitoring.md"
    text = "".join(path.read_text() for part in ("families", "node") for path in sorted((ROOT / "exporters" / part).glob("*.cpp")))
    in_code = set(re.findall(r'"(lockstep_[a-z_]+)"', text))
    on_pages = [names(one, r"\| metric \|", r"^(lockstep_[a-z_]+)") for one in (page, "docs/users/gpus.md")]
    compare(page, "metric", in_code, set.union(*on_pages))


def check_alerts():
    rules = read("exporters/rules/lockstep.rules.yml")
    alerts = set(re.findall(r"alert: (\w+)", rules))
    runbooks = re.findall(r'alert: (\w+)(?:(?!alert:).)*?runbook_url: "file:///usr/share/doc/lockstep/docs/admins/runbooks.md#(\w+)"', rules, re.DOTALL)
    compare("exporters/rules/lockstep.rules.yml", "runbook of", alerts, {alert for alert, anchor in runbooks if anchor == alert.lower()})
    compare("docs/admins/runbooks.md", "alert", alerts, set(re.findall(r"^## (\w+)$", read("docs/admins/runbooks.md"), re.MULTILINE)))
    compare("docs/admins/monitoring.md", "alert", alerts, names("docs/admins/monitoring.md", r"\| alert \|", r"^(\w+)$"))


def check_phases():
    page = "docs/users/metrics.md"
    table = re.search(r"kPhaseNames[^{]*\{(.*?)\}", read("exporters/record/record.h"), re.DOTALL)
    compare(page, "phase", set(re.findall(r'"(\w+)"', table[1])), names(page, r"\| phase \|", r"^(\w+)$"))


def messages_of_the_code():
    """All texts of the code, with one space for each place where a value is inserted."""
    texts = []
    for path in sources():
        code = re.sub(r"^\s*(?://|#include).*$", "", path.read_text(), flags=re.MULTILINE)
        # Texts that are joined by + or << become one, with a gap.
        code = re.sub(r'"\s*(?:\+|<<)[^";{}]*?(?:\+|<<)\s*"', "\0", code)
        for match in LITERAL.finditer(code):
            text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[0]))
            texts.append(re.sub(r"\{[^{}]*\}|\0", "\n", text.replace('\\"', '"').replace("\\n", "")))
    return texts


def is_message(part, texts):
    def found(words):
        pattern = r"[ \n]+".join(re.escape(word) for word in words)
        return any(re.search(pattern, text) for text in texts)

    words = part.split()
    # A value that is a text too divides a part in two.
    return found(words) or any(found(words[:i]) and found(words[i:]) for i in range(1, len(words)))


def check_messages():
    texts = messages_of_the_code() + [os.strerror(number) for number in range(1, 134)]
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT).as_posix()
        for row in rows(name, r"\| (?:message|line) \|"):
            for code in codes(row[0]):
                # The parts between values: an ellipsis, a capital letter alone, a number, a path, a quoted name.
                parts = re.split(r"…|\b[A-Z]\b|/?\b[A-Z]+/[A-Z]+\b|\b[A-Z]{3,}\b|\b\d[\d.,]*(?: ?[KMGT]i?B?)?\b|'[^']*'|(?<!\w)/[\w./-]*|\bn\d\b", code)
                parts = [part.strip(" :;,.()") for part in parts]
                parts = [part for part in parts if len(part.split()) >= 3]
                wrong.extend(f"{name}: no message of the code has '{part}'" for part in parts if not is_message(part, texts))


def check_pages():
    """The pages that messages name exist."""
    for name in sorted({name for text in messages_of_the_code() for name in re.findall(r"docs/[\w/-]+\.md", text)}):
        if not (ROOT / name).exists():
            wrong.append(f"a message names {name}, which does not exist")


def check_loop():
    """The training loop of README.md, which a test runs, is the one of the other pages and of the class's header."""

    def loop_of(name):
        lines = [re.sub(r"\s*//.*", "", line.removeprefix("//")).strip() for line in read(name).splitlines()]
        begin = lines.index("for (const auto& batch : loader) {")
        return lines[begin : lines.index("}", begin)]

    for name in ("docs/design/ddp.md", "docs/users/ddp.md", "runtime/ddp/distributed_data_parallel.h"):
        if loop_of(name) != loop_of("README.md"):
            wrong.append(f"{name}: its training loop is not the one of README.md")


def check_paths():
    """The files that the pages about the design name exist."""
    for page in (ROOT / "docs/design.md", *sorted((ROOT / "docs/design").glob("*.md"))):
        for path in sorted(set(FILE.findall(page.read_text()))):
            if not (ROOT / path).exists():
                wrong.append(f"{page.relative_to(ROOT)}: there is no {path}")
    # In the four ways a name without a folder is a file beside the one of its line.
    for line in read("docs/design.md").splitlines():
        folders = {(ROOT / path).parent for path in FILE.findall(line)}
        for name in re.findall(r"(?<![\w/.-])\w+\.(?:cpp|h)\b", line) if folders else ():
            if not any((folder / name).exists() for folder in folders):
                wrong.append(f"docs/design.md: there is no {name} beside the file of its line")
    # The way of a step time stays as short as the page says, the headers included.
    way = read("docs/design.md").split("**A step time**")[1].split("Grafana")[0]
    files = {file for line in way.splitlines() if "its copy" not in line for file in FILE.findall(line)}
    files |= {file.replace(".cpp", ".h") for file in files if (ROOT / file.replace(".cpp", ".h")).exists()}
    if len(files) != 11 or "eleven files" not in way:
        wrong.append(f"docs/design.md: a step time passes {len(files)} files: {', '.join(sorted(files))}")


def check_remedies():
    """The options, functions and classes that the report's remedies and the users' pages name exist."""
    headers = "".join(path.read_text() for part in ("runtime", "staging") for path in sorted((ROOT / part).rglob("*.h")))
    words = set(re.findall(r"\w+", headers))
    members = {struct: set(re.findall(r"^  [\w:<>, ]+ (\w+)(?: = [^;]*|\{[^;]*\})?;", body, re.MULTILINE))
               for struct, body in re.findall(r"^struct (\w+Options)\b[^;{\n]*\{\n(.*?)^\};", headers, re.MULTILINE | re.DOTALL)}
    python = "".join(path.read_text() for path in sorted((ROOT / "exporters/python").glob("*.py")))
    texts = {path: "\n".join(LITERAL.findall(path.read_text())) for path in sorted((ROOT / "exporters/report").glob("*.cpp"))}
    for path in sorted((ROOT / "docs/users").glob("*.md")):
        texts[path] = "\n".join(codes(re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)))
    if not any("plan." in text for path, text in texts.items() if path.suffix == ".cpp"):
        wrong.append("exporters/report: found no remedy that names an option of the plan")
    for path, text in texts.items():
        options = {("PlanOptions", name) for name in re.findall(r"(?<![\w.])plan\.([a-z_]+)", text)}
        options |= set(re.findall(r"\b(\w+Options)(?:\{\.|::)([a-z_]+)", text))
        missing = [f"{struct} has no {name}" for struct, name in sorted(options) if name not in members.get(struct, ())]
        missing += [f"no header declares {name}" for name in sorted(set(re.findall(r"\blockstep::(?:\w+::)*(\w+)", text)))
                    if name not in words]
        missing += [f"lockstep.py has no {name}" for name in sorted(set(re.findall(r"\blockstep\.(\w+)\(", text)))
                    if not re.search(rf"^(?:def|class) {name}\b", python, re.MULTILINE)]
        wrong.extend(f"{path.relative_to(ROOT)}: {what}" for what in missing)


def main():
    for check in (check_options, check_configuration, check_environment, check_metrics, check_alerts, check_phases, check_messages, check_pages, check_loop, check_paths, check_remedies):
        check()
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
