"""Opens a data set of the package datasets."""

import datasets
from one_line import one_line_errors


def open_data_set(name: str, split: str, columns: "list[str]"):
    """`name`: a folder written by save_to_disk, or what load_dataset takes: a folder of files, or a name on the hub."""
    with one_line_errors(name):
        try:
            data = datasets.load_from_disk(name)
        except FileNotFoundError:
            data = datasets.load_dataset(name, split=split)
        if isinstance(data, datasets.DatasetDict):
            if split not in data:
                raise ValueError(f"no split '{split}': the splits are {', '.join(data)}")
            data = data[split]
    for column in columns:
        if column not in data.column_names:
            raise SystemExit(f"{name}: no column '{column}': the columns are {', '.join(data.column_names)}")
    return data


def rows_of(data, name: str):
    """Each row, after the data set's name and its number."""
    with one_line_errors(name):
        yield from ((f"{name}, row {number}", row) for number, row in enumerate(data))
