#!/usr/bin/env python3
"""Tokenises text: plain files (a document each), JSON lines (.jsonl: a document in each line), tables (.csv, .tsv: a document in
each row), all also compressed (.gz), or a data set of the package datasets. Writes PREFIX.bin and PREFIX.idx; `lockstep-pack
convert PREFIX --out PACK` makes a pack of them.

Needs the package tokenizers (pip install tokenizers), and datasets for --dataset.
"""

import argparse
import itertools

import tokenizers
from documents import checked, documents_of
from one_line import one_line_errors
from token_file import TokenFile


def documents_of_data_set(name: str, split: str, field: str):
    from data_set import open_data_set, rows_of  # needs the package datasets

    return (checked(row[field], where, field) for where, row in rows_of(open_data_set(name, split, [field]), name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help=".txt, .json, .jsonl, .ndjson, .csv or .tsv, also .gz, .bz2 or .xz")
    parser.add_argument("--dataset", help="a folder of save_to_disk, or what load_dataset takes")
    parser.add_argument("--split", default="train", help="of the data set (train)")
    parser.add_argument("--field", default="text", help="the field or column with the text (text)")
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--end", help="the token to write after each document, such as '<|endoftext|>'")
    parser.add_argument("--out", required=True, metavar="PREFIX")
    given = parser.parse_args()
    if bool(given.files) == bool(given.dataset):
        parser.error("name files or --dataset")
    with one_line_errors(given.tokenizer):
        tokenizer = tokenizers.Tokenizer.from_file(given.tokenizer)
    tokenizer.no_truncation()  # which many files set for a model's input
    tokenizer.no_padding()
    end = [] if given.end is None else [tokenizer.token_to_id(given.end)]
    if end == [None]:
        parser.error(f"the tokenizer has no token {given.end}")
    if given.dataset:
        texts = documents_of_data_set(given.dataset, given.split, given.field)
    else:
        texts = itertools.chain.from_iterable(documents_of(path, given.field) for path in given.files)
    # Numbers of added tokens may leave gaps.
    with TokenFile(given.out, 1 + max(tokenizer.get_vocab().values(), default=0)) as out:
        while batch := list(itertools.islice(texts, 1000)):  # encoded by all cores
            with one_line_errors(given.tokenizer):
                encodings = tokenizer.encode_batch(batch)
            for text, encoding in zip(batch, encodings):
                out.add(encoding.ids + end if text.strip() and encoding.ids else [])


if __name__ == "__main__":
    main()
