#!/usr/bin/env python3
"""Checks the #include lines: the order in which the parts may use each other (docs/design.md, "Layout"), and that
no files of runtime and staging include each other in a circle."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# Folder -> the folders of ours, and single files, that it may include from. The longest match counts.
ALLOWED = {
    "common": ["common"],
    "common/leaf": ["common/leaf"],
    "plugin/affinity": ["common", "plugin/affinity"],
    "plugin/spank": ["common/leaf", "plugin/spank"],
    "plugin/spank/staging": ["common/leaf", "plugin/spank", "staging/step/request.h"],
    "plugin/doctor": ["common", "plugin/affinity", "plugin/doctor", "plugin/spank/process/folder.h", "staging/rendezvous"],
    "staging/pack": ["common", "staging/pack"],
    "staging/cache": ["common", "staging/pack", "staging/cache"],
    "staging/rendezvous": ["common", "staging/rendezvous"],
    "staging/transfer": ["common", "staging/pack", "staging/cache", "staging/rendezvous", "staging/transfer"],
    "staging": ["common", "staging"],  # the plugin uses staging, never the other way round
    "staging/step/request.h": ["common/json_bytes.h"],  # the plugin's too
    "runtime": ["common", "runtime", "staging/pack", "exporters/record"],
    "runtime/profile": ["common", "runtime/profile", "exporters/record"],
    "runtime/comm": ["common", "runtime/comm", "runtime/profile"],  # World owns the rank's StepTimer
    "runtime/comm/shm": ["common", "runtime/comm/shm"],
    "runtime/ddp": ["common", "runtime/torch_archive.h", "runtime/torch_version.h", "runtime/profile", "runtime/comm", "runtime/ddp"],
    "runtime/prometheus": ["common", "runtime/comm", "runtime/prometheus", "exporters/families", "exporters/record"],
    "runtime/train": ["common", "runtime/profile/accelerator.h", "runtime/profile/module_owners.h", "runtime/profile/operator_faults.h", "runtime/profile/operators.h", "runtime/torch_archive.h", "runtime/torch_version.h", "runtime/comm", "runtime/ddp", "runtime/train"],
    "runtime/data": ["common", "runtime/profile", "runtime/comm", "runtime/ddp", "runtime/data", "staging/pack", "runtime/torch_archive.h"],
    "exporters/record": ["common/leaf", "exporters/record"],
    "exporters/families": ["common", "exporters/record", "exporters/families"],
    "exporters": ["common", "exporters/staging_record.h"],
    "exporters/node": ["common", "exporters/staging_record.h", "exporters/record", "exporters/families", "exporters/node"],
    "exporters/report": ["common", "exporters/staging_record.h", "exporters/record", "exporters/report"],
    "exporters/top": ["common", "exporters/record", "exporters/report", "exporters/top"],
    "examples": ["common", "examples", "exporters", "plugin", "runtime", "staging"],
}

# Folders in which files must not include each other in a circle. A header and its source count as one file.
WITHOUT_CIRCLES = ["runtime", "staging"]

# Folders that must build without LibTorch and MPI.
WITHOUT_TORCH_AND_MPI = ["common", "plugin", "staging", "exporters"]
TORCH_OR_MPI = re.compile(r"^(torch/|ATen/|c10/|mpi\.h$|mpi/)")

# Folders that use the C and C++ libraries and the kernel's interface only: the first two run inside Slurm's processes,
# and any program may include the third to write a record.
NO_LIBRARIES = ["common/leaf", "plugin/spank", "exporters/record"]
SYSTEM_FOLDERS = ("arpa/", "linux/", "net/", "netinet/", "slurm/", "sys/")


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def rule_for(path: str) -> "list[str] | None":
    folders = [folder for folder in ALLOWED if within(path, folder)]
    return ALLOWED[max(folders, key=len)] if folders else None


def problems_of(path: str, quoted: bool, name: str):
    """Yields each problem with one #include of the file `path`."""
    if quoted:
        allowed = rule_for(path)
        if not (ROOT / name).is_file() and not (ROOT / path).with_name(name).is_file():
            return  # generated, or another project's
        if not (ROOT / name).is_file():
            yield f'write "{name}" from the root of the tree'
        elif allowed is None:
            yield "this folder has no rule in tests/lint/dependencies.py"
        elif not any(within(name, folder) for folder in allowed):
            yield f'may not include "{name}": only {", ".join(allowed)}'
        return
    if TORCH_OR_MPI.match(name) and any(within(path, folder) for folder in WITHOUT_TORCH_AND_MPI):
        yield f"may not include <{name}>: it must build without LibTorch and MPI"
    if "/" in name and not name.startswith(SYSTEM_FOLDERS) and any(within(path, f) for f in NO_LIBRARIES):
        yield f"may not include <{name}>: it links nothing but the C and C++ libraries"


def circle_in(includes: "dict[str, set[str]]"):
    """Files that include each other in a circle, the first one repeated at the end; None if there is no circle."""
    done: "set[str]" = set()

    def visit(file: str, path: "list[str]"):
        if file in path:
            return path[path.index(file) :] + [file]
        if file in done:
            return None
        for name in sorted(includes.get(file, ())):
            found = visit(name, path + [file])
            if found:
                return found
        done.add(file)
        return None

    for file in sorted(includes):
        found = visit(file, [])
        if found:
            return found
    return None


def circles(includes: "dict[str, set[str]]"):
    """Circles, until no file is left in one: each is shown once, without the include that closed it."""
    while found := circle_in(includes):
        yield found
        includes[found[-2]].discard(found[-1])


def main() -> int:
    wrong = 0
    files = 0
    includes: "dict[str, set[str]]" = {}  # by path without the suffix
    for top in sorted({folder.split("/")[0] for folder in ALLOWED}):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix not in (".h", ".cpp"):
                continue
            files += 1
            path = file.relative_to(ROOT).as_posix()
            text = file.read_text()
            if "fmt::join" in text and "#include <fmt/ranges.h>" not in text:
                print(f"{path}: fmt::join needs <fmt/ranges.h>: newer versions of fmt have it there only", file=sys.stderr)
                wrong += 1
            for number, line in enumerate(text.splitlines(), 1):
                match = INCLUDE.match(line)
                if match and match[1] == '"' and any(within(match[2], folder) for folder in WITHOUT_CIRCLES):
                    stem, included = path.rsplit(".", 1)[0], match[2].rsplit(".", 1)[0]
                    if stem != included:
                        includes.setdefault(stem, set()).add(included)
                for problem in problems_of(path, match[1] == '"', match[2]) if match else ():
                    print(f"{path}:{number}: {problem}", file=sys.stderr)
                    wrong += 1
    for circle in circles(includes):
        print(f"include circle: {' -> '.join(circle)}", file=sys.stderr)
        wrong += 1
    if files == 0:
        print(f"no source found under {ROOT}", file=sys.stderr)
    return 1 if wrong or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
