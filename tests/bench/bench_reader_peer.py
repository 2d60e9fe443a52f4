"""WebDataset's part of bench_reader: measures how fast the samples of the same shards are read in order."""

import argparse
import json
import pathlib
import resource
import time

import webdataset

parser = argparse.ArgumentParser()
parser.add_argument("--folder", required=True)
parser.add_argument("--seconds", type=float, default=1)
arguments = parser.parse_args()
shards = sorted(str(path) for path in pathlib.Path(arguments.folder, "pack").glob("*.tar"))


def samples():
    yield from webdataset.WebDataset(shards, shardshuffle=False)


count = sum(1 for _ in samples())  # everything is in the page cache now
done = payload = 0
begin = time.monotonic()
while time.monotonic() - begin < arguments.seconds:
    for sample in samples():
        done += 1
        payload += len(sample["bin"])
        if done % 256 == 0 and time.monotonic() - begin > arguments.seconds:
            break
seconds = time.monotonic() - begin
print(
    json.dumps(
        {
            "samples": count,
            "sample_bytes": payload // done,
            "samples_per_second": done / seconds,
            "bytes_per_second": payload / seconds,
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    )
)
