#!/usr/bin/env python3
"""Trains the same model on the same data under our DistributedDataParallel and under PyTorch's, and compares losses,
gradients, weights and buffers of every rank; once with what C++ has made, once with what Python has made."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77  # what ctest takes for it
FLOAT64 = 1e-12
# A value that is rounded on each rank, once more in the sum by one side, and once at the end: in units of the last
# place of the largest.
HALF = {"fp16": 2.0**-11, "bf16": 2.0**-8}


def run(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("LOCKSTEP_TIMEOUT", "60")
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def on_ranks(ranks, command):
    run(["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command])


def group_of(key):
    """Values that are compared together: a small one beside large ones may be off by their rounding."""
    return "/".join(key.split("/")[: 3 if "/gradient/" in key else 2])


def differences(ours, theirs):
    """Largest difference within each group, relative to the group's largest value."""
    import torch

    found = {}
    for key, value in ours.items():
        expected = theirs[key]
        if expected.shape != value.shape or expected.dtype != value.dtype:
            sys.exit(f"{key}: {value.dtype} {tuple(value.shape)} here, {expected.dtype} {tuple(expected.shape)} there")
        for side, tensor in (("ours", value), ("theirs", expected)):
            if not torch.isfinite(tensor.double()).all():
                sys.exit(f"{key} is not finite in {side}")
        difference, largest = found.get(group_of(key), (0.0, 0.0))
        if value.numel():
            difference = max(difference, (value.double() - expected.double()).abs().max().item())
            largest = max(largest, expected.double().abs().max().item())
        found[group_of(key)] = difference, largest
    return {group: difference / largest if largest else difference for group, (difference, largest) in found.items()}


def tolerance_of(case, group, ranks):
    if "tolerance" in case:
        return case["tolerance"]
    # What is rounded are gradients, and with them the weights and all that comes after the first step.
    if case.get("hook") in HALF:
        return (ranks + 2) * HALF[case["hook"]]
    return FLOAT64


def not_rounded(case, ours):
    """Gradients that a hook has not brought to its type, though it should have."""
    import torch

    types = {"fp16": torch.float16, "bf16": torch.bfloat16}
    if case.get("hook") not in types:
        return []
    gradients = {key: value for key, value in ours.items() if key.startswith(case["name"] + "/gradient/")}
    return [key for key, value in gradients.items() if not torch.equal(value.to(types[case["hook"]]).double(), value)]


def compare(cases, ranks, ours, theirs):
    """The number of what differs. Says for each case how far the two are from each other."""
    wrong = 0
    if set(ours) != set(theirs):
        only = sorted(set(ours) ^ set(theirs))
        print(f"FAILED: {len(only)} values are there on one side only, first {only[:3]}")
        wrong += 1
        ours = {key: value for key, value in ours.items() if key in theirs}
    found = differences(ours, theirs)
    for case in cases:
        of_this = {group: value for group, value in found.items() if group.startswith(case["name"] + "/")}
        if not of_this:
            print(f"FAILED: {case['name']}: nothing to compare")
            wrong += 1
            continue
        bad = {group: value for group, value in of_this.items() if value > tolerance_of(case, group, ranks)}
        worst = max(of_this, key=of_this.get)
        print(f"{'FAILED: ' if bad else ''}{case['name']}: at most {of_this[worst]:.1e} ({worst.split('/', 1)[1]})")
        wrong += len(bad)
        for key in not_rounded(case, ours):
            print(f"FAILED: {key} is not in the type of the hook {case['hook']}")
            wrong += 1
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="ddp_equality_rank")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--only", help="cases whose name contains it")
    chosen = parser.parse_args()
    try:
        import torch
        import torch.distributed as dist

        if not dist.is_gloo_available():
            raise ImportError("without Gloo")
    except ImportError as error:
        print(f"skipped: {sys.executable} has no PyTorch to compare with ({error}; Debian: python3-torch)")
        sys.exit(SKIPPED)

    cases = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
    cases = [case for case in cases if not chosen.only or chosen.only in case["name"]]
    with tempfile.TemporaryDirectory(prefix="lockstep-equality-") as folder:
        folder = pathlib.Path(folder)
        (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
        peer = [sys.executable, str(HERE / "equality_rank.py")]
        run([chosen.program, "--make", str(folder / "cpp.pt")])
        run([*peer, "--make", str(folder / "python.pt")])
        options = ["--cases", str(folder / "cases.json")]
        for data in ("cpp.pt", "python.pt"):
            options += ["--data", str(folder / data)]
        on_ranks(chosen.ranks, [chosen.program, *options, "--out", str(folder / "ours")])
        on_ranks(chosen.ranks, [*peer, "--store", f"file://{folder}/store", *options, "--out", str(folder / "theirs")])
        wrong = 0
        for number, made_by in enumerate(("C++", "Python")):
            for rank in range(chosen.ranks):
                print(f"-- data made by {made_by}, rank {rank} of {chosen.ranks}")
                results = [torch.load(folder / f"{side}.{number}.{rank}") for side in ("ours", "theirs")]
                wrong += compare(cases, chosen.ranks, *results)
    if wrong:
        sys.exit(f"{wrong} differences")


main()
