#!/usr/bin/env python3
"""Tokenises text: plain files (a document each), .jsonl and .jsonl.gz files (a document in each line), .csv and .tsv files (a
document in each row), or a data set of the package datasets. Writes PREFIX.bin and PREFIX.idx; `lockstep-pack convert PREFIX --out PACK` makes a pack of them.

Needs the package tokenizers (pip install tokenizers), and datasets for --dataset.
"""

import argparse
import itertools

import tokenizers
from documents import checked, documents_of
from token_file import TokenFile


def documents_of_data_set(name: str, split: str, field: str):
    from data_set import open_data_set  # needs the package datasets

    rows = open_data_set(name, split)
    return (checked(row[field], f"{name}, row {number}", field) for number, row in enumerate(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help=".txt, .jsonl, .jsonl.gz, .csv or .tsv")
    parser.add_argument("--dataset", help="a folder of save_to_disk, or what load_dataset takes")
    parser.add_argument("--split", default="train", help="of the data set (train)")
    parser.add_argument("--field", default="text", help="the field or column with the text (text)")
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--end", help="the token to write after each document, such as '<|endoftext|>'")
    parser.add_argument("--out", required=True, metavar="PREFIX")
    given = parser.parse_args()
    if bool(given.files) == bool(given.dataset):
        parser.error("name files or --dataset")
    tokenizer = tokenizers.Tokenizer.from_file(given.tokenizer)
    end = [] if given.end is None else [tokenizer.token_to_id(given.end)]
    if end == [None]:
        parser.error(f"the tokenizer has no token {given.end}")
    if given.dataset:
        texts = documents_of_data_set(given.dataset, given.split, given.field)
    else:
        texts = itertools.chain.from_iterable(documents_of(path, given.field) for path in given.files)
    with TokenFile(given.out, tokenizer.get_vocab_size()) as out:
        while batch := list(itertools.islice(texts, 1000)):  # encoded by all cores
            for encoding in tokenizer.encode_batch(batch):
                out.add(encoding.ids + end)
    print(f"{len(out.lengths)} documents, {sum(out.lengths)} tokens: lockstep-pack convert {given.out} --out PACK")


if __name__ == "__main__":
    main()
