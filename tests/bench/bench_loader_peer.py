"""PyTorch's part of bench_loader: a DataLoader with worker processes reads the same samples from the same shards in the same
batches. As in its documentation, it uses a data set of samples, a batch sampler and a function that collates."""

import argparse
import json
import mmap
import pathlib
import statistics
import time

import torch


class Samples(torch.utils.data.Dataset):
    def __init__(self, folder, samples):
        self.folder = folder
        self.samples = samples
        self.shards = {}

    def __len__(self):
        return len(self.samples)

    def shard(self, name):
        if name not in self.shards:
            with open(self.folder / "pack" / name, "rb") as file:
                self.shards[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self.shards[name]

    def __getitem__(self, number):
        name, offset, size = self.samples[number]
        # PyTorch has no unsigned 16-bit integers.
        tokens = torch.frombuffer(self.shard(name), dtype=torch.int16, count=size // 2, offset=offset)
        return number, tokens.to(torch.int64).bitwise_and_(0xFFFF)


def collate(samples):
    lengths = torch.tensor([len(tokens) for _, tokens in samples])
    ends = torch.zeros(len(samples) + 1, dtype=torch.int32)
    ends[1:] = torch.cumsum(lengths, 0)
    mask = torch.ones(int(ends[-1]), dtype=torch.bool)
    mask[ends[:-1].long()] = False
    return {
        "tokens": torch.cat([tokens for _, tokens in samples]),
        "positions": torch.cat([torch.arange(len(tokens)) for _, tokens in samples]),
        "loss_mask": mask,
        "cu_seqlens": ends,
        "sample_ids": torch.tensor([number for number, _ in samples]),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    chosen = parser.parse_args()
    content = json.loads((chosen.folder / "batches.json").read_text(encoding="utf-8"))
    ahead = 4
    loader = torch.utils.data.DataLoader(
        Samples(chosen.folder, content["samples"]),
        batch_sampler=content["batches"],
        num_workers=chosen.workers,
        collate_fn=collate,
        persistent_workers=True,
        prefetch_factor=ahead,
    )
    tokens_per_second, bytes_per_second = [], []
    for epoch in range(chosen.epochs + 1):
        begin, tokens, size = None, 0, 0
        for number, batch in enumerate(loader):
            if number < ahead * chosen.workers:
                continue
            if begin is None:
                begin = time.perf_counter()
                continue
            tokens += batch["tokens"].numel()
            size += sum(tensor.numel() * tensor.element_size() for tensor in batch.values())
        if epoch > 0:
            seconds = time.perf_counter() - begin
            tokens_per_second.append(tokens / seconds)
            bytes_per_second.append(size / seconds)
    print(
        json.dumps(
            {
                "tokens_per_second": statistics.median(tokens_per_second),
                "bytes_per_second": statistics.median(bytes_per_second),
            }
        )
    )


if __name__ == "__main__":
    main()
