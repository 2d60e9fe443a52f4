"""Opens a data set of the package datasets."""

import datasets


def open_data_set(name: str, split: str):
    """`name`: a folder written by save_to_disk, or what load_dataset takes: a folder of files, or a name on the hub."""
    try:
        data = datasets.load_from_disk(name)
    except FileNotFoundError:
        return datasets.load_dataset(name, split=split)
    return data[split] if isinstance(data, datasets.DatasetDict) else data
