#!/usr/bin/env python3
"""Runs the quickstart and writes what the pages show of it: README.md's output, docs/images/report.png (the report's page of that
job) and docs/images/dashboard.png (what a dashboard would show for it, from Prometheus' answers).

  quickstart_pages.py                                              as root, on a quiet machine, with chromium-headless-shell
  quickstart_pages.py --prometheus URL --job JOB --page FILE.html  only the dashboard's page, of any job in any Prometheus

Needs the program draw_panels, which draws as lockstep-report does.
"""

import argparse
import base64
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/unit/exporters"), str(ROOT / "exporters/dashboards")]
import dashboards  # noqa: E402
from browser import Browser, find_browser  # noqa: E402

RATE_INTERVAL = 20
POINTS = 80
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
SCALES = {"percentunit": (100, " %"), "s": (1000, " ms"), "bytes": (2**-20, " MiB"), "binBps": (2**-20, " MiB/s"), "suffix:×": (1, " ×")}
SUFFIXES = {"watt": "W", "joule": "J", "hertz": "Hz"}


def text_of(value, unit):
    if unit in SCALES:
        factor, suffix = SCALES[unit]
        return f"{value * factor:.3g}{suffix}"
    size, prefix = next((one for one in PREFIXES if abs(value) >= one[0]), (1, ""))
    return f"{value / size:.3g} {prefix}{SUFFIXES.get(unit, '')}".strip()


class Prometheus:
    def __init__(self, url, job):
        self.url, self.job = url, job
        now = time.time()
        up = self.get("query_range", query=f'max(lockstep_rank_up{{job_id="{job}"}}) == 1', start=now - 3600, end=now, step=1)
        if not up:
            sys.exit(f"quickstart_pages: {url} has no live rank of job {job} in the last hour")
        times = [float(point[0]) for point in up[0]["values"]]
        self.begin, self.end = times[0], times[-1]

    def get(self, what, **parameters):
        with urllib.request.urlopen(f"{self.url}/api/v1/{what}?" + urllib.parse.urlencode(parameters), timeout=60) as answer:
            return json.load(answer)["data"]["result"]

    def expression(self, query):
        seconds = int(self.end - self.begin)
        for name, value in {"$__rate_interval": f"{RATE_INTERVAL}s", "$__range": f"{seconds}s", "$job": self.job,
                            "$node": ".*", "$rank": ".*"}.items():
            query = query.replace(name, value)
        return query

    def now(self, query):
        return [(each["metric"], float(each["value"][1])) for each in self.get("query", query=self.expression(query), time=self.end)]

    def over_time(self, query):
        step = max(1, (self.end - self.begin) / POINTS)
        return [(each["metric"], [[float(when) - self.begin, float(value)] for when, value in each["values"] if value != "NaN"])
                for each in self.get("query_range", query=self.expression(query), start=self.begin, end=self.end, step=step)]


def legend(target, metric):
    return re.sub(r"\{\{(\w+)\}\}", lambda name: metric.get(name[1], ""), target.get("legendFormat", ""))


def stat(panel, prometheus, unit):
    found = [f"{legend(target, metric)} {text_of(value, unit)}".strip() for target in panel["targets"] for metric, value in prometheus.now(target["expr"])]
    return {"text": found[0]} if found else None


def bars(panel, prometheus, unit):
    rows = [[legend(target, metric), text_of(value, unit)] for target in panel["targets"] for metric, value in prometheus.now(target["expr"])]
    return {"kind": "table", "columns": ["", ""], "rows": rows} if rows else None


def table(panel, prometheus, unit):
    changes = {change["id"]: change["options"] for change in panel["transformations"]}
    if "joinByField" not in changes:
        return None
    field, organize = changes["joinByField"]["byField"], changes["organize"]
    units = {one["matcher"]["options"]: part["value"] for one in panel["fieldConfig"]["overrides"] for part in one["properties"] if part["id"] == "unit"}
    names = organize["renameByName"]
    columns, rows = [names.get(field, field)], {}
    for target in panel["targets"]:
        column = "Value #" + target["refId"]
        for metric, value in prometheus.now(target["expr"]):
            row = rows.setdefault(metric[field], {columns[0]: metric[field]})
            if column in organize["excludeByName"]:
                row.update({names.get(name, name): text for name, text in metric.items() if name != field and name not in organize["excludeByName"]})
            else:
                row[names[column]] = text_of(value, units.get(names[column], unit))
            columns += [name for name in row if name not in columns]
    return {"columns": columns, "rows": [[row.get(name, "") for name in columns] for _, row in sorted(rows.items())]} if rows else None


def timeseries(panel, prometheus, unit):
    factor, suffix = SCALES.get(unit, (1, ""))
    colours = {one["matcher"]["options"]: part["value"]["fixedColor"] for one in panel["fieldConfig"]["overrides"] for part in one["properties"] if part["id"] == "color"}
    series = []
    for target in panel["targets"]:
        for metric, points in prometheus.over_time(target["expr"]):
            name = legend(target, metric)
            series.append({"name": name, "points": [[when, value * factor] for when, value in points]} | ({"colour": colours[name]} if name in colours else {}))
    stacked = "stacking" in panel["fieldConfig"]["defaults"].get("custom", {})
    return {"unit": suffix, "stacked": stacked, "series": series} if any(one["points"] for one in series) else None


def heatmap(panel, prometheus, unit):
    """The buckets are cumulative; the picture shows each alone, without those at both ends that nothing is in."""
    found = sorted(((float(metric["le"]), points) for metric, points in prometheus.over_time(panel["targets"][0]["expr"])), key=lambda one: one[0])
    below, series = {}, []
    for bound, points in found:
        series.append({"name": f"≤ {text_of(bound, unit)}" if bound < float("inf") else "more", "points": [[when, value - below.get(when, 0)] for when, value in points]})
        below = dict(points)
    while series and not any(value > 0 for _, value in series[0]["points"]):
        series.pop(0)
    while series and not any(value > 0 for _, value in series[-1]["points"]):
        series.pop()
    return {"series": series} if series else None


def answers(prometheus):
    description = dashboards.dashboard(*dashboards.job())
    kinds = {"stat": stat, "table": table, "timeseries": timeseries, "heatmap": heatmap, "bargauge": bars}
    panels = []
    for panel in description["panels"]:
        if panel["type"] not in kinds:
            continue
        unit = panel["fieldConfig"]["defaults"]["unit"]
        found = kinds[panel["type"]](panel, prometheus, unit)
        if found:
            panels.append({"title": panel["title"], "kind": panel["type"], "w": panel["gridPos"]["w"], "unit": unit} | found)
    return {"title": description["title"], "state": f"job {prometheus.job} · {prometheus.end - prometheus.begin:.0f} s · drawn from Prometheus' answers, not by Grafana",
            "panels": panels}


def write_page(prometheus, draw, page):
    drawn = subprocess.run([draw], input=json.dumps(answers(prometheus)), capture_output=True, text=True)
    if drawn.returncode != 0:
        sys.exit(drawn.stderr.strip())
    page.write_text(drawn.stdout)


def photograph(browser, page, picture, height):
    from PIL import Image

    browser.call("Emulation.setDeviceMetricsOverride", width=1160, height=height, deviceScaleFactor=1, mobile=False)
    browser.open(page.as_uri())
    taken = io.BytesIO(base64.b64decode(browser.call("Page.captureScreenshot")["data"]))
    Image.open(taken).convert("RGB").quantize(64, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(picture, optimize=True)


def replace_output(page, before, output):
    """The block of code after the line that ends with `before`."""
    text = page.read_text()
    found = re.search(re.escape(before) + r"\n+```\n(.*?)```", text, re.DOTALL)
    if not found:
        sys.exit(f"quickstart_pages: {page.name} has no block of code after '{before}'")
    page.write_text(text[:found.start(1)] + output + text[found.end(1):])


def quickstart(draw):
    run = subprocess.run([ROOT / "examples/quickstart.sh", "--keep"], stdout=subprocess.PIPE, text=True, check=True)
    print(run.stdout)
    output = run.stdout.split("== result\n")[1].split("took ")[0].replace(str(ROOT) + "/", "")
    job = re.search(r"· job (\d+)\.", output)[1]
    url = re.search(r"Prometheus: (\S+)", output)[1]
    work = ROOT / "build/quickstart"
    write_page(Prometheus(url, job), draw, work / "dashboard.html")
    subprocess.run([ROOT / "tests/cluster/embedded/cluster", "down", "--name", "quickstart"], check=True)
    replace_output(ROOT / "README.md", "its output ended with these lines:", output.strip() + "\n")
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(find_browser(), profile)
        browser.call("Page.enable")
        photograph(browser, work / "report.html", ROOT / "docs/images/report.png", 1000)
        photograph(browser, work / "dashboard.html", ROOT / "docs/images/dashboard.png", 1400)
        browser.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=pathlib.Path, default=ROOT / "build/release/bin/draw_panels")
    parser.add_argument("--prometheus")
    parser.add_argument("--job")
    parser.add_argument("--page", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.prometheus:
        write_page(Prometheus(arguments.prometheus, arguments.job), arguments.draw, arguments.page)
    else:
        quickstart(arguments.draw)


if __name__ == "__main__":
    main()
