"""The data of bench_main_job: pages of generated words whose lengths are a real list's."""

import array
import random
import tarfile

import ranks as starting

LENGTHS = starting.ROOT / "tests/data/lengths.tar.xz"
HELDOUT = 4


def all_lengths(longest):
    """Of all requests of the list; a longer one is cut."""
    with tarfile.open(LENGTHS) as lists:
        lines = lists.extractfile("lengths/azure_llm_conv_2023.txt").read().decode().splitlines()
    words = [word for line in lines if not line.startswith("#") for word in line.split()]
    return [min(int(word), longest) for word in words]


def lengths(count, longest):
    """Of so many of them, drawn without replacement."""
    return random.Random(1).sample(all_lengths(longest), count)


def text(words, vocabulary):
    """Words by Zipf's law; in 7 of 10 cases each word's usual successor follows it. A model can learn both."""
    generator = random.Random(2)
    weights = [1 / (rank + 10) for rank in range(vocabulary)]
    drawn = generator.choices(range(vocabulary), weights, k=words)
    usual = generator.choices(range(vocabulary), weights, k=vocabulary)
    for place in range(1, words):
        if generator.random() < 0.7:
            drawn[place] = usual[drawn[place - 1]]
    return array.array("H", drawn)


def make(folder, programs, pages, longest, vocabulary):
    """Files of tokens and their packs: `train`, `heldout`, `train.pack`, `heldout.pack` in the folder."""
    chosen = lengths(pages + HELDOUT, longest)
    words = text(400_000, vocabulary)
    part = 9 * len(words) // 10  # what comes after it is held out
    generator = random.Random(3)
    for name, of, begin, end in (
        ("train", chosen[HELDOUT:], 0, part),
        ("heldout", chosen[:HELDOUT], part, len(words)),
    ):
        (folder / name).mkdir(parents=True)
        for number, length in enumerate(of):
            start = generator.randrange(begin, end - length)
            (folder / name / f"{number:06}.tok").write_bytes(words[start : start + length].tobytes())
        create = [f"{programs}/lockstep-pack", "create", folder / name, "--out", folder / f"{name}.pack"]
        starting.run([str(word) for word in [*create, "--token-bytes", 2]], "lockstep-pack create")
