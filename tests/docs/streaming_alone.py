"""Runs a program with the readers and writers of mosaicml-streaming, without the packages that the rest of it imports: clients
of clouds, and training. Usage: streaming_alone.py PROGRAM.py ARGUMENT...
"""

import importlib.util
import os
import runpy
import sys
import types


def module(name, **content):
    made = types.ModuleType(name)
    made.__dict__.update(content)
    sys.modules[name] = made
    return made


class Local:
    """In place of the uploader: the files stay in the local folder."""

    def __init__(self, out):
        self.local, self.remote = out, None

    def upload_file(self, name):
        pass

    @staticmethod
    def get(out, *_, **__):
        os.makedirs(out, exist_ok=True)
        return Local(out)


def load():
    top = importlib.util.find_spec("streaming").submodule_search_locations[0]
    for name in ("streaming", "streaming.base"):  # without their __init__.py
        module(name).__path__ = [top + name[len("streaming") :].replace(".", "/")]
    for name in ("brotli", "snappy", "zstd"):
        module(name)
    module("streaming.base.storage.upload", CloudUploader=Local)
    module("streaming.base.storage", __path__=[])
    module("streaming.base.util", bytes_to_int=int)


if __name__ == "__main__":
    load()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
