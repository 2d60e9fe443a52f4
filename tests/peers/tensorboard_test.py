#!/usr/bin/env python3
"""TensorBoard reads the event files that the step timer writes.

Exits 77 if Python does not find tensorboard, google.protobuf, absl or numpy (PYTHONPATH).
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError as error:
    print(f"skipped: {error} (PyPI: tensorboard, protobuf, absl-py; Debian: python3-numpy; set PYTHONPATH)")
    sys.exit(77)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writer", required=True, help="step_timer_test")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep-tensorboard.") as folder:
        subprocess.run(
            [arguments.writer, "--gtest_filter=EventFileTest.*"], check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "LOCKSTEP_TEST_EVENTS": folder},
        )
        events = event_accumulator.EventAccumulator(folder, size_guidance={event_accumulator.SCALARS: 0})
        events.Reload()
        tags = events.Tags()["scalars"]
        assert sorted(tags) == [
            "loss", "rank_0/forward_ms", "rank_0/other_ms", "rank_0/step_ms", "rank_0/tokens_per_second",
        ], tags
        for tag in tags:
            assert [event.step for event in events.Scalars(tag)] == list(range(1, 301)), tag
        for event in events.Scalars("loss"):
            assert math.isclose(event.value, 1 / event.step, rel_tol=1e-6), event
        for step, speed in zip(events.Scalars("rank_0/step_ms"), events.Scalars("rank_0/tokens_per_second")):
            assert math.isclose(step.value * speed.value, 1e6, rel_tol=1e-4), (step, speed)
        print(f"{len(tags)} series of 300 steps")


main()
