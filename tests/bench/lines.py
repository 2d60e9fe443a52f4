"""Reading what the benchmarks have printed, and one way to draw it."""

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
    """The one line that matches; nothing where there is none. The last where it was measured again."""
    found = select(lines, **wanted)
    return found[-1] if found else None


def pyplot():
    """matplotlib, so that the same numbers give the same file."""
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


# Told apart by people who see colours differently too (Okabe and Ito).
COLOURS = {
    "blue": "#0072b2",
    "sky": "#56b4e9",
    "orange": "#e69f00",
    "red": "#d55e00",
    "green": "#009e73",
    "grey": "#555555",
}
