"""Imports the readers and writers of the formats' own packages, and as little else of these packages as possible.

Python must find the packages (PYTHONPATH): h5py, lmdb, tfrecord with protobuf and crc32c, megatron-core, mxnet. Their
other imports (training) are replaced by empty modules.
"""

import importlib
import importlib.util
import sys
import types


def module(name: str, **content) -> types.ModuleType:
    """Registers a module with this name and content."""
    made = types.ModuleType(name)
    made.__dict__.update(content)
    sys.modules[name] = made
    return made


def bare_package(name: str) -> None:
    """Registers a package whose modules can be imported, without running its __init__.py."""
    top = name.split(".")[0]
    if name == top:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise ImportError(f"no package {name}")
        path = list(spec.submodule_search_locations)
    else:
        parent, _, last = name.rpartition(".")
        path = [f"{folder}/{last}" for folder in sys.modules[parent].__path__]
    made = module(name)
    made.__path__ = path


def megatron_indexed_dataset():
    """megatron.core.datasets.indexed_dataset."""
    bare_package("megatron")
    bare_package("megatron.core")
    module("megatron.core.utils", log_single_rank=lambda *args, **kwargs: None)
    return importlib.import_module("megatron.core.datasets.indexed_dataset")


def recordio():
    """mxnet.recordio, which uses MXNet's C++ library."""
    bare_package("mxnet")
    return importlib.import_module("mxnet.recordio")
