#!/usr/bin/env python3
"""The commands of the documents: every verb and option of our tools, of Slurm and of our scripts exists, every program
and file that a command or a sentence names is in the tree, Python blocks are valid Python, and blocks marked "test: run" run as printed.

Usage: commands_test.py --bin FOLDER        the folder of the built tools
"""

import argparse
import functools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import blocks

ROOT = blocks.ROOT
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
TOOL = re.compile(r"(?<![\w./-])(lockstep-(?:pack|stage|pin|plan|exporter|report|top|doctor|run))(?![\w.-])((?:[ =][^|;&>`#]*)?)")
SLURM = re.compile(r"(?<![\w-])(srun|sbatch|salloc)((?: [^|;&>`]*)?)|^#SBATCH(.*)")
SCRIPT = re.compile(r"(?<![\w/.-])(?:\./)?((?:examples|tests)/[\w./-]+)((?: [^|;&>`#]*)?)")
SOURCE = re.compile(r"(?<![\w/.-])((?:common|plugin|staging|runtime|exporters|tests|examples|docs)/[\w/.-]+\.(?:h|cpp|py|sh|md|json|yml|conf|sbatch))\b")
OPTION = re.compile(r"(?<![\w-])--[a-zA-Z][\w.-]*")
SLURM_OPTIONS = {"--help", "--version", "--cpu-bind"}  # --help shows the last one only beside task/affinity
# The plugin's options, from its table.
PLUGIN = re.findall(r'\{Option::\w+, "([\w-]+)"', (ROOT / "common/leaf/options/options.cpp").read_text())
TOOLS = ("lockstep-pack", "lockstep-stage", "lockstep-pin", "lockstep-plan", "lockstep-exporter", "lockstep-report",
         "lockstep-top", "lockstep-doctor", "lockstep-run")
# Options of other programs: groupadd, srun, torchrun, GoogleTest, TensorBoard, pyxis.
OTHERS = {"--container-mounts", "--system", "--nproc-per-node", "--gtest_filter", "--logdir", "--nproc_per_node", "--hpc-job-mapping-dir",
          "--storage.tsdb.retention.time", "--max-restarts", "--kill-on-bad-exit"}

# These pages submit jobs: tests/cluster/home_test.sh and examples_test.sh run them.
ON_THE_CLUSTER = ("docs/start/no-root.md", "docs/start/python.md")

wrong = []


def check(holds, place, message):
    if not holds:
        wrong.append(f"{place}: {message}")


@functools.cache
def help_of(*command):
    environment = dict(os.environ)
    if command[0] in ("srun", "sbatch", "salloc"):
        environment["SLURM_CONF"] = SLURM_CONF
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, env=environment)
    return done.stdout if done.returncode == 0 else None


def has_option(text, option):
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text or "") is not None


@functools.cache
def verbs_of(tool):
    text = help_of(f"{BIN}/{tool}") or ""
    return re.findall(r"^  (\w+)  ", text.split("Subcommands:")[1], re.MULTILINE) if "Subcommands:" in text else []


def check_tool(tool, rest, place, in_sentence):
    if not os.path.exists(f"{BIN}/{tool}"):
        check(tool in ("lockstep-top", "lockstep-doctor"), place, f"{tool} does not exist")
        return
    rest = rest.split(" -- ")[0]
    if tool == "lockstep-run":  # options of srun and the program follow
        rest = rest.split(" --mpi")[0]
    text = help_of(f"{BIN}/{tool}") or ""
    words = rest.split()
    verb = next((word for word in words if not word.startswith("-")), None)
    if verbs_of(tool) and words and not words[0].startswith("-"):
        check(verb in verbs_of(tool) or in_sentence, place, f"{tool} has no verb '{verb}'")
    # `lockstep-plan --cost` in a sentence may leave out the verb.
    for each in [verb] if verb in verbs_of(tool) else verbs_of(tool) if in_sentence else []:
        text += help_of(f"{BIN}/{tool}", each) or ""
    for option in OPTION.findall(rest):
        check(has_option(text, option), place, f"{tool} {verb or ''} has no option {option}")


def check_slurm(command, rest, place):
    for option in OPTION.findall(re.split(r" (?:lockstep-|\./|sh |mpirun |train\b)", rest)[0]):
        name = option[2:]
        if name.startswith(("stage", "pin", "metrics")):
            check(name in PLUGIN, place, f"the plugin has no option {option}")
        elif SLURM_CONF and option not in SLURM_OPTIONS:
            check(has_option(help_of(command), option), place, f"{command} has no option {option}")


def check_script(path, rest, place):
    check((ROOT / path).exists() or (ROOT / path.rstrip(".,")).exists(), place, f"{path} does not exist")
    if (ROOT / path).is_file() and os.access(ROOT / path, os.X_OK):
        text = (ROOT / path).read_text(errors="replace")
        folder = (ROOT / path).parent / "lib"  # of the embedded cluster's verbs
        text += "".join(part.read_text() for part in sorted(folder.glob("*.sh"))) if folder.is_dir() else ""
        for option in OPTION.findall(rest.split(" -- ")[0]):
            check(has_option(text, option), place, f"{path} has no option {option}")


@functools.cache
def cmake_texts():
    return "".join(path.read_text() for path in sorted(ROOT.rglob("CMakeLists.txt")) if "build" not in path.parts[:-1]) + "".join(
        path.read_text() for path in (ROOT / "common/cmake").iterdir())


def check_line(line, place, in_sentence=False):
    for tool, rest in TOOL.findall(line):
        check_tool(tool, rest, place, in_sentence)
    for command, rest, directive in SLURM.findall(line):
        check_slurm(command or "sbatch", rest or directive.split(" # ")[0], place)
    for path, rest in SCRIPT.findall(line):
        check_script(path.rstrip(".,:"), rest, place)
    for path in SOURCE.findall(line):
        check((ROOT / path).exists(), place, f"{path} does not exist")
    for names in re.findall(r"find_package\(lockstep\b[^)]*COMPONENTS ([\w ]+)", line):
        for name in names.split():
            check(f"lockstep_library({name}\n" in cmake_texts() or f"lockstep_library({name} " in cmake_texts(), place,
                  f"there is no component {name}")
    for preset in re.findall(r"--preset[ =](\w[\w-]*)", line):
        presets = (ROOT / "CMakePresets.json").read_text()
        check(f'"name": "{preset}"' in presets, place, f"there is no preset {preset}")
    for variable in re.findall(r"-D(LOCKSTEP_\w+)", line):
        known = variable in cmake_texts() or (variable.startswith("LOCKSTEP_BUILD_") and variable[15:] in cmake_texts())
        check(known, place, f"there is no CMake variable {variable}")
    for program in re.findall(r"build/(?:user|release)/bin/(\w[\w-]*)", line):
        check(re.search(rf"(?<![\w-]){program}(?![\w-])", cmake_texts()), place, f"no target makes {program}")


@functools.cache
def all_options():
    """The help of all tools and of Slurm, the plugin's options, and our scripts and test programs."""
    parts = [f"--{name}" for name in PLUGIN]
    for tool in TOOLS:
        if os.path.exists(f"{BIN}/{tool}"):
            parts += [help_of(f"{BIN}/{tool}", *verb) or "" for verb in ([], *([verb] for verb in verbs_of(tool)))]
    parts += [help_of(command) or "" for command in ("srun", "sbatch")]
    files = [path for folder in ("tests", "examples") for path in sorted((ROOT / folder).rglob("*"))]
    parts += [path.read_text(errors="replace") for path in files
              if path.is_file() and path.suffix in (".py", ".sh", ".cpp", "") and path.parent != ROOT / "tests/docs"]
    return "\n".join(parts)


def check_page(page):
    name = page.relative_to(ROOT)
    lines = page.read_text().splitlines()
    language = None
    joined = ""
    for number, line in enumerate(lines, 1):
        place = f"{name}:{number}"
        if line.startswith("```"):
            language = None if language is not None else line[3:].strip()
        elif language == "" and not re.match(r"(sudo |export |\w+=\S+ )?(lockstep-|mpirun|srun|sbatch|tests/|examples/)", line):
            continue  # output
        elif language == "cmake":
            check_line(line, place)
        elif language in ("sh", ""):
            joined += line
            if joined.endswith("\\"):
                joined = joined[:-1]
            else:
                check_line(joined, place)
                joined = ""
        elif language is None:
            for code in INLINE.findall(line):
                check_line(code, place, in_sentence=True)
                for option in OPTION.findall(code) if SLURM_CONF else ():
                    check(option in OTHERS or has_option(all_options(), option), place, f"nothing has an option {option}")
            if line.startswith("    lockstep-"):
                check_line(line, place)


def run_blocks(page, folder):
    """The marked blocks of a page as one script, in a folder that world.sh has filled."""
    marked = blocks.script_of(page)
    if not marked or page.relative_to(ROOT).as_posix() in ON_THE_CLUSTER:
        return
    # Absolute paths of the documents lie in the test's folder.
    paths = re.compile(r"(?<![\w/.])/(shared|local|x)/")
    script = paths.sub(rf"{folder}/\1/", marked)
    command = ["bash", "-euo", "pipefail", "-c", f". {shlex.quote(str(ROOT / 'tests/docs/world.sh'))}\n{script}"]
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "LOCKSTEP_SOURCE": str(ROOT), "USER": "me",
                   "HOME": f"{folder}/home"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    check(done.returncode == 0, page.relative_to(ROOT), f"a block failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    print(f"ran the blocks of {page.relative_to(ROOT)}")


def check_packages_of_nodes():
    """The page for admins names the package of each library that a tool or a training program loads directly."""
    page = (ROOT / "docs/admins/install.md").read_text()
    for program in (*TOOLS, "text_lm"):
        path = f"{BIN}/{program}"
        if not os.path.exists(path) or not shutil.which("dpkg-query"):
            continue
        direct = re.findall(r"NEEDED\s+(\S+)", subprocess.run(["objdump", "-p", path], capture_output=True, text=True).stdout)
        for name, library in re.findall(r"^\s(\S+) => (/\S+)", subprocess.run(["ldd", path], capture_output=True, text=True).stdout, re.MULTILINE):
            if name not in direct:
                continue
            owner = subprocess.run(["dpkg-query", "-S", os.path.realpath(library)], capture_output=True, text=True).stdout
            package = owner.split(":")[0]
            if package in ("", "libc6", "libstdc++6", "libgcc-s1"):
                continue
            check(re.search(rf"[` ]{re.escape(package)}[` ]", page), "docs/admins/install.md", f"{program} needs {package}")


def main():
    global BIN, SLURM_CONF
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    BIN = parser.parse_args().bin
    with tempfile.TemporaryDirectory() as folder:
        SLURM_CONF = f"{folder}/slurm.conf"
        pathlib.Path(SLURM_CONF).write_text("ClusterName=docs\nSlurmctldHost=localhost\n")
        try:
            available = help_of("srun") is not None
        except FileNotFoundError:
            available = False
        if not available:
            print("no Slurm here: its own options are not checked")
            SLURM_CONF = ""
        check_packages_of_nodes()
        for page in blocks.pages():
            check_page(page)
        for block in blocks.all_blocks("python"):
            try:
                compile(block.text, block.place, "exec")
            except SyntaxError as error:
                check(False, block.place, f"Python does not accept this: {error}")
        for page in blocks.pages():
            world = pathlib.Path(folder) / page.relative_to(ROOT).as_posix().replace("/", "-")
            world.mkdir()
            run_blocks(page, world)
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
