#!/usr/bin/env python3
"""Trains the same model on the same data under our DistributedDataParallel and under PyTorch's, and compares losses,
gradients, weights and buffers of every rank: once with input made by C++, once with input made by Python."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77  # for ctest
FLOAT64 = 1e-12
# Half a unit in the last place, relative to the largest value. A value is rounded on each rank, by one side once more in
# the sum, and once at the end.
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
    """The group of values that a value is compared with: the rounding of large values affects small ones in it."""
    return "/".join(key.split("/")[: 3 if "/gradient/" in key else 2])


def differences(ours, theirs):
    """The largest difference in each group, relative to the largest value of the group."""
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
    # The hook rounds gradients, and so changes the weights and all values after the first step.
    if case.get("hook") in HALF:
        return (ranks + 2) * HALF[case["hook"]]
    return FLOAT64


def not_rounded(case, ours):
    """Gradients that the hook should have rounded to its type and did not."""
    import torch

    types = {"fp16": torch.float16, "bf16": torch.bfloat16}
    if case.get("hook") not in types:
        return []
    gradients = {key: value for key, value in ours.items() if key.startswith(case["name"] + "/gradient/")}
    return [key for key, value in gradients.items() if not torch.equal(value.to(types[case["hook"]]).double(), value)]


def compare(cases, ranks, ours, theirs):
    """Prints the largest difference of each case, and returns the number of failures."""
    wrong = 0
    if set(ours) != set(theirs):
        only = sorted(set(ours) ^ set(theirs))
        print(f"FAILED: {len(only)} values exist on one side only, the first are {only[:3]}")
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
            print(f"FAILED: {key} is not rounded to the type of the hook {case['hook']}")
            wrong += 1
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="ddp_equality_rank")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--only", help="run the cases whose names contain this text")
    chosen = parser.parse_args()
    try:
        import torch
        import torch.distributed as dist

        if not dist.is_gloo_available():
            raise ImportError("torch has no Gloo")
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
                results = [torch.load(folder / f"{side}.{number}.{rank}", weights_only=False) for side in ("ours", "theirs")]
                wrong += compare(cases, chosen.ranks, *results)
    if wrong:
        sys.exit(f"{wrong} differences")


main()
