"""A checker for Grafana's dashboards of schemaVersion 38 (Grafana 10.1), because Debian and PyPI offer no Grafana. It knows
what our dashboards use of kinds/dashboard/dashboard_kind.cue, of the panels' panelcfg.cue and of Prometheus'
dataquery.cue, and refuses everything else: a field with a wrong name is silently ignored by Grafana.

A form is a type, a set of the allowed values, a list of one form, a dict of the fields' forms ("name?" may be missing,
"*" is any other name), or a tuple of alternatives.
"""

VERSION = 38
NUMBER = (int, float)
SOURCE = {"type": {"prometheus"}, "uid": str}
LEGEND = {"displayMode": {"list", "table", "hidden"}, "placement": {"bottom", "right"}, "showLegend": bool, "calcs": [str]}
REDUCE = {"calcs": [{"lastNotNull", "last", "max", "min", "mean", "sum"}], "fields?": str, "values": bool}
COLOUR = {"mode": {"fixed", "thresholds", "palette-classic", "continuous-GrYlRd"}, "fixedColor?": str}
LINKS = [{"title": str, "url": str, "targetBlank?": bool}]
STACKING = {"none", "normal", "percent"}
GRAPH = {"drawStyle?": {"line", "bars", "points"}, "lineWidth?": NUMBER, "fillOpacity?": NUMBER, "stacking?": {"mode": STACKING, "group?": str}}
# Options and custom settings of each kind of panel.
PANELS = {
    "stat": ({"reduceOptions": REDUCE, "graphMode?": {"none", "line", "area"}, "colorMode?": {"none", "value", "background"},
              "textMode?": {"auto", "value", "value_and_name", "name", "none"}}, {}),
    "timeseries": ({"legend?": LEGEND}, GRAPH),
    "table": ({"showHeader?": bool, "sortBy?": [{"displayName": str, "desc?": bool}]}, {}),
    "bargauge": ({"reduceOptions": REDUCE, "orientation?": {"auto", "vertical", "horizontal"}, "displayMode?": {"basic", "lcd", "gradient"}}, {}),
    "barchart": ({"orientation?": {"auto", "vertical", "horizontal"}, "stacking?": STACKING, "xField?": str, "showValue?": {"auto", "never", "always"}, "legend?": LEGEND}, {}),
    "heatmap": ({"calculate": bool, "yAxis?": {"unit?": str}, "cellGap?": NUMBER,
                 "color?": {"mode": {"opacity", "scheme"}, "scheme?": str, "steps?": NUMBER}}, {}),
}
TRANSFORMATIONS = {
    "joinByField": {"byField": str, "mode": {"outer", "inner"}},
    "organize": {"excludeByName?": {"*": bool}, "indexByName?": {"*": int}, "renameByName?": {"*": str}},
    "groupingToMatrix": {"columnField": str, "rowField": str, "valueField": str},
}
PROPERTIES = {"unit": str, "decimals": int, "color": COLOUR, "links": LINKS}
TARGET = {"refId": str, "datasource": SOURCE, "expr": str, "legendFormat?": str, "instant?": bool, "range?": bool, "format?": {"time_series", "table", "heatmap"}}
GRID = {"x": int, "y": int, "w": int, "h": int}
ROW = {"id": int, "type": {"row"}, "title": str, "collapsed": bool, "panels": [dict], "gridPos": GRID}
VARIABLE = {
    "name": str, "label": str, "type": {"query", "datasource"}, "hide": {0, 1, 2}, "query": (str, {"query": str, "refId": str}), "description?": str, "datasource?": SOURCE,
    "refresh?": {0, 1, 2}, "sort?": set(range(7)), "multi?": bool, "includeAll?": bool, "allValue?": str, "current?": {"text?": str, "value?": str}}
DASHBOARD = {
    "uid": str, "title": str, "description": str, "tags": [str], "schemaVersion": {VERSION}, "version": int, "editable": bool, "refresh": str,
    "time": {"from": str, "to": str}, "timezone": {"browser", "utc"}, "templating": {"list": [VARIABLE]}, "panels": [dict],
    "annotations": {"list": [{"name": str, "datasource": SOURCE, "enable": bool, "iconColor": str, "expr": str, "titleFormat?": str, "textFormat?": str}]},
    "links": [{"type": {"dashboards", "link"}, "title": str, "tags": [str], "asDropdown": bool, "includeVars": bool, "keepTime": bool}]}


def panel_form(panel):
    if panel.get("type") == "row":
        return ROW
    options, custom = PANELS.get(panel.get("type"), ({}, {}))
    return {
        "id": int, "type": set(PANELS), "title": str, "description": str, "datasource": SOURCE, "gridPos": GRID, "targets": [TARGET], "options": options,
        "fieldConfig": {"defaults": {"unit": str, "decimals?": int, "max?": NUMBER, "min?": NUMBER, "custom?": custom},
                        "overrides": [{"matcher": {"id": {"byName"}, "options": str}, "properties": [{"id": set(PROPERTIES), "value": object}]}]},
        "transformations?": [{"id": set(TRANSFORMATIONS), "options": dict}], "timeFrom?": str}


def mismatches(value, form, where):
    if isinstance(form, tuple):
        if all(list(mismatches(value, one, where)) for one in form):
            yield f"{where} fits none of its forms"
    elif isinstance(form, set):
        if not isinstance(value, (str, int)) or value not in form:
            yield f"{where} is {value!r}"
    elif isinstance(form, type):
        if not isinstance(value, form) or (form is not object and isinstance(value, bool) != (form is bool)):
            yield f"{where} is a {type(value).__name__}"
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield f"{where} is not a list"
        else:
            for i, each in enumerate(value):
                yield from mismatches(each, form[0], f"{where}[{i}]")
    elif not isinstance(value, dict):
        yield f"{where} is not an object"
    else:
        yield from (f"{where}.{name} is missing" for name in form if name[-1] not in "?*" and name not in value)
        for name, each in value.items():
            one = form.get(name, form.get(name + "?", form.get("*")))
            yield from [f"{where}.{name} is unknown"] if one is None else mismatches(each, one, f"{where}.{name}")


def problems(dashboard):
    yield from mismatches(dashboard, DASHBOARD, "dashboard")
    for panel in dashboard.get("panels", []):
        where = f"panel '{panel.get('title')}'"
        yield from mismatches(panel, panel_form(panel), where)
        for change in panel.get("transformations", []):
            yield from mismatches(change.get("options"), TRANSFORMATIONS.get(change.get("id"), {}), f"{where}: {change.get('id')}")
        for override in panel.get("fieldConfig", {}).get("overrides", []):
            for part in override.get("properties", []):
                yield from mismatches(part.get("value"), PROPERTIES.get(part.get("id"), {}), f"{where}: {part.get('id')}")
        targets = [target.get("refId") for target in panel.get("targets", [])]
        if len(set(targets)) != len(targets):
            yield f"{where}: two queries have the same refId"
