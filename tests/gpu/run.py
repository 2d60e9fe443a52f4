"""Runs the programs that need a GPU, and prints a table of their results. run.sh starts it."""

import argparse
import glob
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent

# What is checked, the program, its ranks, and which of its tests.
CHECKS = [
    ("NCCL, one rank", "nccl_test", 1, "*"),
    ("NCCL, two ranks on one GPU", "nccl_test", 2, "NcclWithoutEnoughDevices.*"),
    ("DDP against the CPU, float64", "ddp_cuda_test", 1, "*"),
    ("GradScaler", "train_device_test", 1, "*Scaled*:*Infinite*"),
    ("activation checkpointing", "train_device_test", 1, "*ActivationCheckpointing*"),
    ("checkpoints", "train_device_test", 1, "*Resumed*"),
    ("phases by CUDA events", "train_device_test", 1, "*TimesOfTheDevice"),
    ("loader's page-locked copies", "device_loader_test", 1, "*"),
]
SANITIZED = ("compute-sanitizer memcheck", "train_device_test", 1, "*Scaled*")
CHECK_SECONDS = 120  # libraries of some GB are read from a cold disk

# What the quotients of the benchmark should reach (docs/design/goals.md).
RATIOS = [
    ("DDP / bare module", ("lockstep", "ddp"), ("lockstep", "bare"), 1.02),
    ("DDP / PyTorch's DDP", ("lockstep", "ddp"), ("pytorch", "ddp"), 1.0),
    ("bare module / PyTorch's", ("lockstep", "bare"), ("pytorch", "bare"), None),
    ("DDP with loader / DDP", ("lockstep", "loader"), ("lockstep", "ddp"), None),
]


class Stop(Exception):
    """Nothing can be run; the message says why."""


def arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="a dry run without a GPU, with a tiny model")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the table, the lines and the log (default: a new one)")
    parser.add_argument("--programs", type=pathlib.Path, default=HERE / "bin", help="folder of the programs")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step in bench_gpu")
    parser.add_argument("--minutes", type=float, default=8, help="no check goes on after this time")
    return parser.parse_args()


def torch_folder():
    """The folder of this Python's PyTorch, or None."""
    found = importlib.util.find_spec("torch")
    return pathlib.Path(found.origin).parent if found and found.origin else None


def torch_version(folder):
    found = re.search(r"__version__ = '([^'+]*)", (folder / "version.py").read_text(encoding="utf-8"))
    return found.group(1) if found else "unknown"


def environment(cpu, scratch):
    """The variables with which the programs find their libraries."""
    env = dict(os.environ)
    built_for = HERE / "torch_version"
    if built_for.exists():
        folder = torch_folder()
        if folder is None:
            raise Stop(f"{sys.executable} has no PyTorch, which the programs need: put the python3 that has it first in PATH")
        wanted, found = built_for.read_text(encoding="utf-8").strip(), torch_version(folder)
        if found != wanted:
            raise Stop(f"the programs are for PyTorch {wanted}, but {folder} is {found}: run pack.sh --torch={found}")
        libraries = [HERE / "lib", folder / "lib", *sorted(glob.glob(str(folder.parent / "nvidia" / "*" / "lib")))]
        old = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
        env["LD_LIBRARY_PATH"] = ":".join([*map(str, libraries), *old])
        env["OPAL_PREFIX"] = str(HERE)  # Open MPI looks for its plugins there
    env.update(
        OMPI_MCA_btl="self,vader",
        OMPI_MCA_pml="ob1",
        OMPI_MCA_plm="isolated",
        PMIX_MCA_pcompress_base_silence_warning="1",
        GTEST_COLOR="no",
        LOCKSTEP_TIMEOUT="60",
        TMPDIR=str(scratch),
        XDG_RUNTIME_DIR=str(scratch),
    )
    if not cpu:
        env["LOCKSTEP_TEST_DEVICE"] = "cuda"
    return env


def mpirun(ranks):
    packed = HERE / "bin" / "orterun"
    program = str(packed) if packed.exists() else "mpirun"
    return [program, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]


class Runner:
    def __init__(self, chosen, out, env):
        self.chosen = chosen
        self.out = out
        self.env = env
        self.deadline = time.monotonic() + 60 * chosen.minutes
        self.lines = []
        (out / "log.txt").write_text("", encoding="utf-8")
        self.file = (out / "results.jsonl").open("w", encoding="utf-8")

    def write(self, line):
        self.lines.append(line)
        print(json.dumps(line), file=self.file, flush=True)

    def command(self, name, command, limit, env=None):
        """Runs a command. Returns its exit code (None: it took too long) and what it printed."""
        limit = min(limit, self.deadline - time.monotonic())
        if limit <= 0:
            return None, ""
        try:
            process = subprocess.Popen(
                list(map(str, command)), env=env or self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return 127, str(error)
        try:
            output, errors = process.communicate(timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            code = None
        with (self.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"===== {name}: {' '.join(map(str, command))}\n{output}{errors}\n")
        return code, output + errors if code else output

    def check(self, name, program, ranks, tests, prefix=(), limit=CHECK_SECONDS):
        begin = time.monotonic()
        path = self.chosen.programs / program
        if not path.exists():
            return self.write({"check": name, "result": "failed", "seconds": 0, "detail": f"{path} does not exist"})
        start = mpirun(ranks) if ranks > 1 else []
        code, output = self.command(name, [*start, *prefix, path, f"--gtest_filter={tests}"], limit)
        result, detail = verdict(code, output)
        return self.write({"check": name, "result": result, "seconds": round(time.monotonic() - begin, 1), "detail": detail})

    def bench(self, name, command, env=None):
        """Runs one side of the benchmark. Returns its lines."""
        begin = time.monotonic()
        code, output = self.command(name, command, 2 * CHECK_SECONDS, env)
        lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"bench"')] if code == 0 else []
        detail = f"{len(lines)} modes" if code == 0 else last_line(code, output)
        result = "passed" if lines else "failed"
        self.write({"check": name, "result": result, "seconds": round(time.monotonic() - begin, 1), "detail": detail})
        for line in lines:
            self.write(line)
        return lines


def last_line(code, output):
    if code is None:
        return "took too long"
    lines = [line for line in output.splitlines() if line.strip()]
    return f"exit code {code}: {lines[-1][:200] if lines else 'no output'}"


def verdict(code, output):
    """The result of a test program, and a line about it."""
    count = {word: len(re.findall(rf"^\[ *{word} *\] .* \(\d+ ms\)$", output, re.M)) for word in ("OK", "SKIPPED", "FAILED")}
    if count["FAILED"]:
        first = re.search(r"^\[ *FAILED *\] (\S+)", output, re.M).group(1)
        return "failed", f"{count['FAILED']} failed, first {first}"
    if code != 0:
        return "failed", last_line(code, output)
    if count["OK"]:
        skipped = f", {count['SKIPPED']} skipped" if count["SKIPPED"] else ""
        return "passed", f"{count['OK']} passed{skipped}"
    if count["SKIPPED"]:
        reason = re.search(r": Skipped\n(.+)", output)
        return "skipped", reason.group(1) if reason else "the log says why"
    return "failed", "no test was run"


def sanitizer():
    return shutil.which("compute-sanitizer") or next(iter(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")), None)


def device_name(cpu):
    if cpu:
        return "cpu"
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True, timeout=60
        )
        return asked.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        raise Stop("nvidia-smi finds no NVIDIA GPU here; run.sh --cpu makes a dry run without one") from None


def run_all(runner, device):
    cpu = runner.chosen.cpu
    for check in CHECKS:
        runner.check(*check)
    tool = sanitizer()
    if cpu or tool is None:
        reason = "needs a GPU" if cpu else "compute-sanitizer was not found"
        runner.write({"check": SANITIZED[0], "result": "skipped", "seconds": 0, "detail": reason})
    else:
        # NCCL probes for features with calls that may fail, which are not errors of the program.
        options = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
        runner.check(*SANITIZED, prefix=[tool, *options], limit=2 * CHECK_SECONDS)
    common = ["--device", "cpu" if cpu else "cuda", "--name", device, "--batch", runner.chosen.batch]
    common += ["--quick"] if cpu else []
    folder = torch_folder()
    why_no_peer = f"{sys.executable} has no torch" if folder is None else ""
    if folder and torch_version(folder).startswith("1."):
        why_no_peer = f"torch {torch_version(folder)} has no scaled_dot_product_attention"
    for turn in (1,) if cpu else (1, 2):
        ours = runner.bench(f"bench_gpu, turn {turn}", [runner.chosen.programs / "bench_gpu", "--json", *common])
        if why_no_peer:
            runner.write({"check": f"PyTorch, turn {turn}", "result": "skipped", "seconds": 0, "detail": why_no_peer})
        elif ours:
            peer = [sys.executable, HERE / "bench_gpu_peer.py", "--peak-tflops", ours[0]["peak_tflops"], *common]
            runner.bench(f"PyTorch, turn {turn}", peer, os.environ)  # it finds its own libraries


def table(lines):
    rows = [f"{'check':<30} {'result':<8} {'s':>6}  detail"]
    for line in lines:
        if "check" in line:
            rows.append(f"{line['check']:<30} {line['result']:<8} {line['seconds']:>6}  {line['detail']}")
    best = {}
    for line in lines:
        if "bench" in line:
            key = line["implementation"], line["mode"]
            if key not in best or line["milliseconds"] < best[key]["milliseconds"]:
                best[key] = line
    if best:
        rows += ["", f"{'step (the better turn)':<30} {'ms':>8} {'achieved / peak':>16}"]
        for (implementation, mode), line in best.items():
            rows.append(f"{implementation + ' ' + mode:<30} {line['milliseconds']:>8.2f} {line['peak_share']:>16.3f}")
        rows += ["", f"{'quotient':<30} {'':>8} {'should be':>10}"]
        for name, above, below, target in RATIOS:
            if above in best and below in best:
                value = best[above]["milliseconds"] / best[below]["milliseconds"]
                rows.append(f"{name:<30} {value:>8.3f} {f'<= {target}' if target else '':>10}")
    return "\n".join(rows)


def main():
    chosen = arguments()
    try:
        device = device_name(chosen.cpu)
        with tempfile.TemporaryDirectory(prefix="lockstep-gpu-") as scratch:
            env = environment(chosen.cpu, scratch)
            out = chosen.out or pathlib.Path(tempfile.mkdtemp(prefix="lockstep-gpu-results-"))
            out.mkdir(parents=True, exist_ok=True)
            runner = Runner(chosen, out, env)
            folder = torch_folder()
            runner.write({"run": "gpu", "device": device, "torch": torch_version(folder) if folder else None})
            run_all(runner, device)
    except Stop as stop:
        print(f"run.sh: {stop}", file=sys.stderr)
        sys.exit(2)
    text = f"device: {device}\n\n{table(runner.lines)}\n\nlines and log: {out}"
    (out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    sys.exit(1 if any(line.get("result") == "failed" for line in runner.lines) else 0)


if __name__ == "__main__":
    main()
