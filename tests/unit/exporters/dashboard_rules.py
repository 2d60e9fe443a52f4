#!/usr/bin/env python3
"""The dashboards keep the rules of grafana/dashboard-linter, except those that exporters/dashboards/.lint excludes with
a reason; and their links lead to dashboards that exist.

  dashboard_rules.py FOLDER
"""

import json
import pathlib
import re
import sys

# Those that our dashboards use.
UNITS = {"none", "short", "percentunit", "bytes", "binBps", "s", "suffix:×"}
WITH_UNITS = {"stat", "table", "timeseries", "gauge", "barchart", "bargauge", "heatmap"}
DATASOURCE = "${datasource}"


def problems_of_variables(dashboard):
    variables = dashboard["templating"]["list"]
    sources = [each for each in variables if each["type"] == "datasource"]
    if [(each["name"], each["label"], each["query"]) for each in sources] != [("datasource", "Data Source", "prometheus")]:
        yield "one variable 'datasource' with the label 'Data Source' selects Prometheus"
    for each in variables:
        if each["type"] != "query":
            continue
        if each["datasource"]["uid"] != DATASOURCE:
            yield f"variable {each['name']} does not use {DATASOURCE}"
        if each["refresh"] != 2:
            yield f"variable {each['name']} is not read again when the time range changes"
        if not each.get("label") or not each.get("description"):
            yield f"variable {each['name']} has no label or description"


def problems_of_query(query):
    for function, window in re.findall(r"\b(rate|increase|irate)\([^][]*\[([^]]*)\]", query):
        if window != "$__rate_interval" and not (window == "$__range" and f"[{window}] @ end()" in query):
            yield f"{function} over {window} instead of $__rate_interval"
    for counter in re.finditer(r"\w+_total\b", query):
        if not re.search(r"(rate|increase)\($", query[:counter.start()]):
            yield f"counter {counter[0]} without rate or increase"


def problems_of_score(panel):
    """A straggler score is a ratio: its unit is ×, and its title says of what."""
    columns = {each["matcher"]["options"]: {part["id"]: part["value"] for part in each["properties"]}.get("unit")
               for each in panel["fieldConfig"]["overrides"]}
    units = columns if panel["type"] == "table" else {panel["title"]: panel["fieldConfig"]["defaults"].get("unit")}
    if not any("÷ median" in title and unit == "suffix:×" for title, unit in units.items()):
        yield "a straggler score without the unit × and '… ÷ median' in its title"


def problems_of_panel(panel):
    if not panel.get("title") or not panel.get("description"):
        yield "no title or description"
    if not panel.get("targets"):
        yield "no targets"
    if panel["type"] in WITH_UNITS and panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
        yield f"unit {panel['fieldConfig']['defaults'].get('unit')}"
    for source in [panel, *panel.get("targets", [])]:
        if source.get("datasource", {}).get("uid") != DATASOURCE:
            yield f"a data source other than {DATASOURCE}"
    for target in panel.get("targets", []):
        yield from problems_of_query(target["expr"])
        if "straggler_score" in target["expr"].split(" and on ")[0]:
            yield from problems_of_score(panel)


def problems(dashboard, uids):
    if dashboard["editable"]:
        yield "it is editable"
    if not dashboard.get("description"):
        yield "no description"
    if not any(link["type"] == "dashboards" and link["includeVars"] for link in dashboard["links"]):
        yield "no links to the other dashboards"
    yield from problems_of_variables(dashboard)
    seen = set()
    taken = set()
    for panel in dashboard["panels"]:
        if panel["id"] in seen:
            yield f"two panels have the id {panel['id']}"
        seen.add(panel["id"])
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        if cells & taken or place["x"] + place["w"] > 24:
            yield f"panel '{panel['title']}' covers another one or leaves the grid"
        taken |= cells
        if panel["type"] != "row":
            for problem in problems_of_panel(panel):
                yield f"panel '{panel['title']}': {problem}"
    for uid in re.findall(r'"/d/([\w-]+)', json.dumps(dashboard)):
        if uid not in uids:
            yield f"a link to the dashboard {uid}, which does not exist"


def main():
    dashboards = {path.name: json.loads(path.read_text()) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json"))}
    uids = {dashboard["uid"] for dashboard in dashboards.values()}
    found = [f"{name}: {problem}" for name, dashboard in dashboards.items() for problem in problems(dashboard, uids)]
    print("\n".join(found))
    sys.exit(1 if found or len(uids) < 3 or len(uids) != len(dashboards) else 0)


if __name__ == "__main__":
    main()
