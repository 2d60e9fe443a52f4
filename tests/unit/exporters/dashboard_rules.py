#!/usr/bin/env python3
"""The dashboards keep the rules of grafana/dashboard-linter, except those that exporters/dashboards/.lint excludes with
a reason; they have the form of the schema version that they name; and their links lead to dashboards that exist.

  dashboard_rules.py exporters/dashboards/dashboards.py
"""

import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import dashboard_schema

# Those that our dashboards use.
UNITS = {"none", "short", "percentunit", "bytes", "binBps", "s", "suffix:×", "watt", "joule", "hertz"}
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


def problems_of_size(panel, uid):
    """A graph of all ranks' buckets or phases, and two weeks of all GPUs, would be more samples than Prometheus reads at once."""
    for target in panel.get("targets", []):
        if uid != "lockstep-node" and target.get("range", True) and re.search(r"lockstep_(\w+_bucket|phase_seconds_total)", target["expr"]):
            yield f"a graph without a recording rule: {target['expr']}"
        if "timeFrom" in panel and re.search(r"\blockstep_", target["expr"]):
            yield f"a long time without a recording rule: {target['expr']}"


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
            for problem in [*problems_of_panel(panel), *problems_of_size(panel, dashboard["uid"])]:
                yield f"panel '{panel['title']}': {problem}"
    for uid in re.findall(r'"/d/([\w-]+)', json.dumps(dashboard)):
        if uid not in uids:
            yield f"a link to the dashboard {uid}, which does not exist"


def undetected(dashboard):
    """Mistakes that the checker of the schema must find."""
    panels = {panel["type"]: i for i, panel in enumerate(dashboard["panels"])}
    graph, table = panels["timeseries"], panels["table"]
    for name, mistake in {
        "another schema version": lambda d: d.update(schemaVersion=39),
        "an unknown kind of panel": lambda d: d["panels"][graph].update(type="graph"),
        "a field with a wrong name": lambda d: d["panels"][graph].update(discription=""),
        "a panel without queries": lambda d: d["panels"][graph].pop("targets"),
        "a unit that is a number": lambda d: d["panels"][graph]["fieldConfig"]["defaults"].update(unit=1),
        "a custom setting of another panel": lambda d: d["panels"][table]["fieldConfig"]["defaults"].update(custom={"drawStyle": "line"}),
        "an unknown format": lambda d: d["panels"][table]["targets"][0].update(format="tables"),
        "a transformation without a field": lambda d: d["panels"][table]["transformations"][0]["options"].pop("byField"),
        "a refId twice": lambda d: d["panels"][table]["targets"][1].update(refId="A"),
    }.items():
        broken = copy.deepcopy(dashboard)
        mistake(broken)
        if not list(dashboard_schema.problems(broken)):
            yield f"the checker of the schema does not find {name}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-B", sys.argv[1], folder], check=True)
        dashboards = {path.name: json.loads(path.read_text()) for path in sorted(pathlib.Path(folder).glob("*.json"))}
    uids = {dashboard["uid"] for dashboard in dashboards.values()}
    found = [f"{name}: {problem}" for name, dashboard in dashboards.items()
             for problem in [*dashboard_schema.problems(dashboard), *problems(dashboard, uids)]]
    found += undetected(dashboards["lockstep-node.json"])
    print("\n".join(found))
    sys.exit(1 if found or len(uids) < 3 or len(uids) != len(dashboards) else 0)


if __name__ == "__main__":
    main()
