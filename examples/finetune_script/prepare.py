#!/usr/bin/env python3
"""Trains a small network on the digits 0 to 4 and exports it as TorchScript, for finetune_script.

Usage: prepare.py OUT    reads OUT/digits.csv, which examples/digits_cnn/prepare.sh OUT makes, and writes OUT/pretrained.pt.
Needs PyTorch for Python: Debian's python3-torch, or any later version. It takes seconds on one core.
"""

import os
import pathlib
import sys

try:
    import torch
except ImportError:
    sys.exit("prepare.py: this Python does not have torch; install it (Debian: apt-get install python3-torch)")


class Digits(torch.nn.Module):
    """Takes pictures [n, 1, 8, 8] from -1 to 1, returns scores [n, 10]."""

    def __init__(self):
        super().__init__()
        layers = []
        channels = 1
        for width in (16, 32):
            layers += [
                torch.nn.Conv2d(channels, width, 3, padding=1, bias=False),
                torch.nn.BatchNorm2d(width),
                torch.nn.ReLU(),
                torch.nn.MaxPool2d(2),
            ]
            channels = width
        self.features = torch.nn.Sequential(*layers)
        self.classifier = torch.nn.Linear(channels * 2 * 2, 10)

    def forward(self, pictures):
        return self.classifier(self.features(pictures).flatten(1))


def read(file):
    """The pictures of the digits 0 to 4 that prepare.sh does not hold out."""
    lines = [[int(number) for number in line.split(",")] for line in file.read_text().split()]
    kept = [line for number, line in enumerate(lines, 1) if number % 5 != 0 and line[64] < 5]
    table = torch.tensor(kept)
    return table[:, :64].reshape(-1, 1, 8, 8).mul(15).div(255).sub(0.5).div(0.5), table[:, 64]


def train(model, pictures, labels):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(8):
        for batch in torch.randperm(len(labels)).split(64):
            loss = torch.nn.functional.cross_entropy(model(pictures[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    out = pathlib.Path(sys.argv[1])
    if not (out / "digits.csv").is_file():
        sys.exit(f"prepare.py: {out}/digits.csv does not exist; make it with examples/digits_cnn/prepare.sh {out}")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    pictures, labels = read(out / "digits.csv")
    model = Digits()
    loss = train(model, pictures, labels)
    complete = out / f".pretrained.{os.getpid()}"  # only a complete file gets the final name
    torch.jit.script(model).save(str(complete))
    complete.rename(out / "pretrained.pt")
    print(f"pretrained on {len(labels)} pictures of the digits 0 to 4, loss {loss:.3f}: {out}/pretrained.pt")


if __name__ == "__main__":
    main()
