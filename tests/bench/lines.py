"""Reads the lines that the benchmarks have printed, and draws them in one style."""

import json
import pathlib


def read(paths):
    lines = []
    for path in paths:
        for number, text in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError as error:
                raise SystemExit(f"{path}:{number}: {error}") from None
    return lines


def select(lines, **wanted):
    return [line for line in lines if all(line.get(key) == value for key, value in wanted.items())]


def only(lines, **wanted):
    """Returns the line that matches, the last one if it was measured again, or None."""
    found = select(lines, **wanted)
    return found[-1] if found else None


def pyplot():
    """Returns matplotlib's pyplot with settings by which the same numbers give the same file."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "lockstep",
            "font.family": "sans-serif",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e4e4e4",
            "legend.frameon": False,
        }
    )
    return plt


def save(figure, path):
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    # matplotlib ends lines with blanks.
    path = pathlib.Path(path)
    text = "\n".join(line.rstrip() for line in path.read_text(encoding="utf-8").splitlines())
    path.write_text(text + "\n", encoding="utf-8")


# Colours that colour-blind readers can distinguish too (Okabe and Ito).
COLOURS = {
    "blue": "#0072b2",
    "sky": "#56b4e9",
    "orange": "#e69f00",
    "red": "#d55e00",
    "green": "#009e73",
    "grey": "#555555",
}
