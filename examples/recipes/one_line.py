"""Errors of packages as one line. Needs no packages."""

import contextlib


@contextlib.contextmanager
def one_line_errors(source):
    """Names the source, such as the file that is read inside. For any error, because packages raise many kinds."""
    try:
        yield
    except Exception as error:
        text = repr(error) if isinstance(error, KeyError) else " ".join(str(error).split())
        raise SystemExit(f"{source}: {text or repr(error)}")
