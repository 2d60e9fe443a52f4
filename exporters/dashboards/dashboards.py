#!/usr/bin/env python3
"""Writes the dashboards for Grafana, from the descriptions below.

  dashboards.py FOLDER

In the queries below, `{}` selects the dashboard's nodes and job, `{R}` its ranks too, and `{J}` only its job; more matchers
may follow after a comma. `[i]` is the interval of rates, `[r]` the whole time range at its end, `[r:1m]` its minutes.
"""

import json
import pathlib
import re
import sys

SCHEMA_VERSION = 38  # tests/unit/exporters/dashboard_schema.py checks this one
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
OKABE_ITO = {  # colours that can be told apart with any kind of colour vision
    "#E69F00": ("data_wait", "input"), "#F0E442": ("host_to_device", "between_steps"), "#56B4E9": ("forward", "start"),
    "#0072B2": ("backward", "compute"), "#D55E00": ("comm_exposed", "communication"), "#009E73": ("optimizer", "trained"),
    "#CC79A7": ("checkpoint", "imbalance"), "#999999": ("other", "host")}
REDUCE = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
TIMES = "&${__url_time_range}"
SHOW_JOB = {"job": ("Show this job", f"/d/lockstep-job?var-datasource=${{datasource}}&var-job=${{__value.text}}{TIMES}")}
SHOW_NODE = {"node": ("Show this node", f"/d/lockstep-node?var-datasource=${{datasource}}&var-node=${{__value.text}}{TIMES}")}


def override(column, **properties):
    return {"matcher": {"id": "byName", "options": column}, "properties": [{"id": name, "value": value} for name, value in properties.items()]}


# Of phases, causes of lost time, and what bounds a step.
COLOURS = [override(name, color={"mode": "fixed", "fixedColor": colour}) for colour, names in OKABE_ITO.items() for name in names]


def panel(kind, title, what, targets, unit, w, h=8, options=None, custom=None, overrides=(), decimals=None, maximum=None, **more):
    defaults = {"unit": unit}
    defaults |= {name: value for name, value in (("decimals", decimals), ("max", maximum), ("custom", custom)) if value is not None}
    targets = [{"refId": chr(ord("A") + i), "datasource": DATASOURCE, **target} for i, target in enumerate(targets)]
    return {"type": kind, "title": title, "description": what, "datasource": DATASOURCE, "w": w, "h": h, "targets": targets,
            "fieldConfig": {"defaults": defaults, "overrides": list(overrides)}, "options": options or {}, **more}


def stat(title, what, query, unit="none", w=3, legend=None, text="auto"):
    options = {**REDUCE, "colorMode": "value", "graphMode": "none" if legend else "area", "textMode": text}
    target = {"expr": query} | ({"legendFormat": legend, "instant": True, "range": False} if legend else {})
    return panel("stat", title, what, [target], unit, w, 4, options, decimals=2 if unit == "suffix:×" else None)


def graph(title, what, queries, unit="short", w=8, stacked=False, points=False, **more):
    """`queries`: (query, legend) each."""
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 60, "lineWidth": 0} if stacked else {"drawStyle": "points"} if points else None
    return panel("timeseries", title, what, [{"expr": query, "legendFormat": legend} for query, legend in queries], unit, w,
                 custom=custom, **more)


def heat(title, what, query, unit, w=8):
    """The query answers with the cumulative buckets of a histogram, so that the panel is as small for 8,192 ranks as for 8."""
    options = {"calculate": False, "yAxis": {"unit": unit}, "color": {"mode": "scheme", "scheme": "Cividis", "steps": 64}, "cellGap": 1}
    return panel("heatmap", title, what, [{"expr": query, "legendFormat": "{{le}}", "format": "heatmap"}], unit, w, options=options)


def bars(title, what, query, legend, unit="bytes", w=8):
    options = {"orientation": "horizontal", "displayMode": "basic", **REDUCE}
    return panel("bargauge", title, what, [{"expr": query, "legendFormat": legend, "instant": True, "range": False}], unit, w, options=options)


def table(title, what, key, columns, top, w=24, h=8, links=None, hidden=(), **more):
    """A line for each value of the labels `key`, joined by the first of them. `columns`: (name, query, unit); a name None only
    shows the labels of its query. `top`: the query by which the lines are chosen, and their number."""
    on, field = ", ".join(key), key[0]
    chosen = f"on ({on}) topk({top[1]}, {top[0]})"
    targets = []
    for _, query, _ in columns:
        query = f"({query}) and {chosen}"
        if len(key) > 1:
            field = "_".join(key)
            query = f'label_join({query}, "{field}", " / ", ' + ", ".join(f'"{label}"' for label in key) + ")"
        targets.append({"expr": query, "instant": True, "range": False, "format": "table"})
    values = [f"Value #{chr(ord('A') + i)}" for i in range(len(columns))]
    names = {value: name for value, (name, _, _) in zip(values, columns) if name}
    labels = {"job_id": "job", "user_name": "user", "bound_by": "bound by"} if len(key) == 1 else {field: field.replace("_id", "").replace("_", " / ")}
    hide = ["Time", *(f"Time {i + 1}" for i in range(len(columns))), *(value for value in values if value not in names), *hidden]
    if len(key) > 1:
        hide += [name for label in key for name in (label, *(f"{label} {i + 1}" for i in range(len(columns))))]
    overrides = [override(name, unit=unit, **({"decimals": 2} if unit == "suffix:×" else {})) for name, _, unit in columns if name and unit != "none"]
    overrides += [override(column, links=[{"title": text, "url": url}]) for column, (text, url) in (links or {}).items()]
    transformations = [{"id": "joinByField", "options": {"byField": field, "mode": "outer"}},
                       {"id": "organize", "options": {"excludeByName": dict.fromkeys(hide, True), "renameByName": labels | names}}]
    return panel("table", title, what, targets, "none", w, h, overrides=overrides, transformations=transformations, **more)


def top(number, query, on, by):
    """A series each for some values of the labels `on`: those for which `by` is largest."""
    return f"{query} and on ({on}) topk({number}, {by})"


def variable(name, label, what, query, several=False, sort=1):
    return {"name": name, "label": label, "description": what, "type": "query", "datasource": DATASOURCE, "hide": 0,
            "query": {"query": query, "refId": name}, "refresh": 2, "sort": sort, "multi": several, "includeAll": several} | (
                {"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if several else {})


SCORES = "last_over_time(lockstep:straggler_score:ratio{R}[r]) or last_over_time(lockstep_straggler_score{R}[r])"
GOODPUT = 'sum(rate(lockstep_job_seconds_total{, cause="trained"}[i])) / sum(rate(lockstep_job_seconds_total{}[i]))'
GOODPUT_BY_CAUSE = "sum by (cause) (rate(lockstep_job_seconds_total{}[i])) / on () group_left () (sum(rate(lockstep_job_seconds_total{}[i])) > 0)"
STEPS = 'sum(lockstep:step_seconds_bucket:rate2m{J, le="+Inf"})'
SHARES = "The parts of the step add up to it. Waiting for a later rank is imbalance."


def ranks_tables(key, scores):
    """The slowest ranks, and what their processes and GPUs use."""
    by = ", ".join(key)
    slowest = (f"max by ({by}) ({scores})", 15)

    def rate(name, more=""):
        return f"sum by ({by}) (rate({name}{{R{more}}}[i]))"
    def each(query):
        return f"max by ({by}) ({query})"
    steps = rate("lockstep_steps_total")
    waits = rate("lockstep_phase_seconds_total", ', phase="data_wait"')
    works = rate("lockstep_phase_seconds_total", ', phase!="comm_exposed"')
    node = (None, f"max by ({by}, node) (lockstep_rank_up{{R}})", "none")
    one_key = {"links": SHOW_NODE} if len(key) == 1 else {}
    return [
        table("Slowest ranks", "Time per step, and the time since the last step ended. The 15 ranks with the highest straggler score.", key, [
            node, ("own time ÷ median", each(scores), "suffix:×"),
            ("step", each("rate(lockstep_step_seconds_sum{R}[i]) / rate(lockstep_step_seconds_count{R}[i])"), "s"), ("own time", f"{works} / {steps}", "s"),
            ("waits for data", f"{waits} / {steps}", "s"),
            ("waits for ranks", f'{rate("lockstep_comm_wait_seconds_total")} / {steps}', "s"),
            ("communicates", f'{rate("lockstep_comm_transfer_seconds_total")} / {steps}', "s"),
            ("tokens/s", rate("lockstep_tokens_total"), "short"), ("samples/s", rate("lockstep_samples_total"), "short"),
            ("since the last step", each("time() - lockstep_last_step_timestamp_seconds{R}"), "s")], slowest, **one_key),
        table("Processes of the slowest ranks", "CPUs in use by the program, the kernel and the loader's threads; memory; pages that came from a disk; read calls; how often a thread had to give its CPU to another one.", key, [
            node, ("CPUs, program", rate("lockstep_cpu_user_seconds_total"), "short"), ("CPUs, kernel", rate("lockstep_cpu_system_seconds_total"), "short"),
            ("CPUs, loader", rate("lockstep_loader_cpu_seconds_total"), "short"), ("memory", each("lockstep_memory_bytes{R}"), "bytes"),
            ("peak", each("lockstep_memory_peak_bytes{R}"), "bytes"), ("limit", each("lockstep_memory_limit_bytes{R}"), "bytes"),
            ("page-ins/s", rate("lockstep_major_page_faults_total"), "short"), ("read", rate("lockstep_process_read_bytes_total"), "binBps"),
            ("reads/s", rate("lockstep_process_reads_total"), "short"), ("switches/s", rate("lockstep_involuntary_switches_total"), "short")], slowest, **one_key),
        table("Least busy GPUs", "The 15 GPUs on which kernels ran for the smallest part of the time. Slowed: by heat or by the power supply; capped: by the power limit. Retries: LibTorch's allocator got no memory and freed unused blocks.", key, [
            (None, f"max by ({by}, node, UUID) (lockstep:gpu:info{{R}})", "none"), ("busy", each(f"lockstep:gpu_busy:ratio{{R}}"), "percentunit"),
            ("memory", each(f"lockstep:gpu_memory:ratio{{R}}"), "percentunit"), ("of", each("lockstep_gpu_memory_total_bytes{R}"), "bytes"),
            ("power", each(f"lockstep:gpu_power:watts{{R}}"), "watt"), ("clock", each(f"lockstep:gpu_sm_clock:hertz{{R}}"), "hertz"),
            ("slowed", f'{rate("lockstep_gpu_slowed_seconds_total")} / {rate("lockstep_gpu_measured_seconds_total")}', "percentunit"),
            ("capped", f'{rate("lockstep_gpu_power_capped_seconds_total")} / {rate("lockstep_gpu_measured_seconds_total")}', "percentunit"),
            ("Xids", f"sum by ({by}) (increase(lockstep_gpu_xid_errors_total{{R}}[r]))", "none"),
            ("ECC corrected", each("lockstep_gpu_ecc_corrected_errors{R}"), "none"), ("ECC uncorrected", each("lockstep_gpu_ecc_uncorrected_errors{R}"), "none"),
            ("retries", f"sum by ({by}) (increase(lockstep_gpu_allocator_retries_total{{R}}[r]))", "none"),
            ("unused blocks", each("lockstep_gpu_allocator_unused_bytes{R}"), "bytes")], (f"-max by ({by}) (lockstep:gpu_busy:ratio{{R}})", 15), **one_key)]


def by_phase(quantile, buckets="lockstep:phase_duration_seconds_bucket:rate2m{J}"):
    return f"histogram_quantile({quantile}, sum by (phase, le) ({buckets}))"


def exporter():
    """The row of the exporters themselves."""
    return ("Exporters", [
        graph("Scrape", "Time in which an exporter reads its records. Goal: 5 ms with 8 ranks. The 20 slowest.", [
            (top(20, "lockstep_exporter_scrape_seconds{N}", "node", "last_over_time(lockstep_exporter_scrape_seconds{N}[r])"), "{{node}}")], "s"),
        graph("Errors", "Records and other files that could not be read, and failed scrapes. The 20 nodes with the largest counts.", [
            (top(20, "sum by (node, what) (increase(lockstep_exporter_errors_total{N}[i]))", "node",
                 "sum by (node) (increase(lockstep_exporter_errors_total{N}[r]))"), "{{node}} {{what}}")], "none"),
        graph("Dropped series", "Series that an exporter did not serve, because there were more records than --max-files or --max-files-per-user. The 20 nodes with the largest counts.", [
            (top(20, "increase(lockstep_exporter_dropped_series_total{N}[i])", "node", "increase(lockstep_exporter_dropped_series_total{N}[r])"), "{{node}}")], "none")])


def cluster():
    tokens = "sum by (job_id) (rate(lockstep_tokens_total{}[i]))"
    largest = (tokens, 30)

    def bound(name):
        return f'max by (job_id) (lockstep:bound:ratio{{bound_by="{name}"}})'

    slow_jobs = "count by (node) (count by (node, job_id) (avg_over_time(lockstep:node_own_time:ratio{}[r]) > 1.05))"
    all_jobs = "count by (node) (count by (node, job_id) (avg_over_time(lockstep:node_own_time:ratio{}[r])))"
    suspects = f"({slow_jobs} / {all_jobs}) > 0.5 and {slow_jobs} >= 3"
    joules = "sum by (job_id) (sum_over_time(lockstep:node_gpu_energy:rate{}[r:1m])) * 60"
    rows = [(None, [
        stat("Jobs running", "Job steps with at least one live rank.", "count(count by (job_id, step_id) (lockstep_rank_up{} == 1)) or vector(0)"),
        stat("Ranks running", "Live ranks of all jobs.", "sum(lockstep_rank_up{}) or vector(0)"),
        stat("Tokens per second", "Of all jobs, without padding.", "sum(rate(lockstep_tokens_total{}[i]))", "short"),
        stat("Goodput", "Share of all ranks' time that trained.", GOODPUT, "percentunit"),
        stat("Computing", "Share of all jobs' step time in forward, backward and optimizer.", 'sum(lockstep:phase_seconds:rate2m{J, phase=~"forward|backward|optimizer"}) / sum(lockstep:phase_seconds:rate2m{J})', "percentunit"),
        stat("GPUs not used", "GPUs that were granted to jobs that do not use them.", "sum(lockstep:gpus_unused:count{}) or vector(0)"),
        stat("Alerts", "Lockstep alerts that fire now. docs/admins/runbooks.md has a paragraph for each.", 'count(ALERTS{alertname=~"Lockstep.*", alertstate="firing"}) or vector(0)'),
        stat("Exporters down", "Scrape targets of the job `lockstep` that do not answer.", 'count(up{job="lockstep"} == 0) or vector(0)')]),
    ("Jobs", [
        table("Jobs", "Goodput is the share of the ranks' time that trained; `bound by` is the largest part of the step, and the columns after it are all parts. The slowest rank is relative to the median rank. The 30 jobs with the highest rate.", ("job_id",), [
            (None, "max by (job_id, user_name, program, ranks) (lockstep_job_info{})", "none"), ("tokens/s", tokens, "short"),
            ("goodput", 'sum by (job_id) (rate(lockstep_job_seconds_total{, cause="trained"}[i])) / sum by (job_id) (rate(lockstep_job_seconds_total{}[i]))', "percentunit"),
            (None, "topk by (job_id) (1, max by (job_id, bound_by) (lockstep:bound:ratio))", "none"),
            *((name, bound(name), "percentunit") for name in ("compute", "input", "communication", "imbalance", "host")),
            ("slowest ÷ median", "max by (job_id) (lockstep:straggler_score:ratio{})", "suffix:×"),
            ("padding", "max by (job_id) (lockstep:padding:ratio)", "percentunit"),
            ("memory ÷ limit", "max by (job_id) (lockstep:job_memory:ratio{})", "percentunit")], largest, links=SHOW_JOB),
        graph("Goodput by cause, all jobs", "What the time of all ranks was used for: trained, or lost to each cause. between_steps: evaluations, for example.",
              [(GOODPUT_BY_CAUSE, "{{cause}}")], "percentunit", 12, True, overrides=COLOURS, maximum=1),
        panel("table", "Goodput by user and cause", "What the time of each user's ranks was used for in the chosen range. The 20 users whose ranks lost most time.", [
            {"expr": top(20, "sum by (user_name, cause) (increase(lockstep_job_seconds_total{}[r])) / on (user_name) group_left () (sum by (user_name) (increase(lockstep_job_seconds_total{}[r])) > 0)",
                         "user_name", 'sum by (user_name) (increase(lockstep_job_seconds_total{, cause!="trained"}[r]))'), "instant": True, "range": False, "format": "table"}],
            "percentunit", 12, decimals=0, transformations=[{"id": "groupingToMatrix", "options": {"columnField": "cause", "rowField": "user_name", "valueField": "Value"}}]),
        graph("Jobs by what bounds them", "The number of jobs for which each part of the step is the largest.", [
            ("count by (bound_by) (topk by (job_id, step_id) (1, lockstep:bound:ratio))", "{{bound_by}}")], "none", 8, True, overrides=COLOURS),
        graph("Step time by phase, all jobs", "Share of the step time of all ranks in each phase.", [
            ("sum by (phase) (lockstep:phase_seconds:rate2m{J}) / on () group_left () sum(lockstep:phase_seconds:rate2m{J})", "{{phase}}")],
            "percentunit", 8, True, overrides=COLOURS),
        graph("Tokens per second by job", "Without padding. The 20 largest jobs.", [
            (top(20, "sum by (job_id) (lockstep:tokens:rate)", "job_id", "sum by (job_id) (increase(lockstep_tokens_total{}[r]))"), "job {{job_id}}")])]),
    ("Nodes and GPUs", [
        table("Suspects", "Nodes whose ranks worked more than 5 % longer than the median rank of their job, in most of their jobs of the last two weeks and in at least three. One job may have uneven work; several jobs point at the node. No node is drained: look at it first.", ("node",), [
            ("own time ÷ median", "avg by (node) (avg_over_time(lockstep:node_own_time:ratio{}[r]))", "suffix:×"),
            ("slow in jobs", slow_jobs, "none"), ("of jobs", all_jobs, "none"),
            ("worst job ÷ median", "max by (node) (avg_over_time(lockstep:node_own_time:ratio{}[r]))", "suffix:×"),
            ("GPUs slowed", "avg by (node) (avg_over_time(lockstep:node_gpu_slowed:ratio{}[r]))", "percentunit"),
            ("Xids", "sum by (node) (sum_over_time(lockstep:node_gpu_xid_errors:increase5m{}[r]))", "none"),
            ("page-ins/s", "avg by (node) (avg_over_time(lockstep:node_page_ins:rate{}[r:1m]))", "short")], (suspects, 20), 12, links=SHOW_NODE, timeFrom="14d"),
        table("Nodes", "CPUs in use, memory, and pages that came from a disk: by node_exporter, else by the ranks' records. The 30 nodes with the highest share of memory.", ("node",), [
            ("CPUs", "max by (node) (lockstep:node_cpus:rate{})", "short"), ("memory", "max by (node) (lockstep:node_memory:ratio{})", "percentunit"),
            ("page-ins/s", "max by (node) (lockstep:node_page_ins:rate{})", "short"), ("ranks", "sum by (node) (lockstep_exporter_ranks{})", "none")],
            ("max by (node) (lockstep:node_memory:ratio{})", 30), 12, links=SHOW_NODE),
        table("GPUs by job", "By dcgm-exporter and a Slurm exporter where they run, else by NVML. Slowed: by heat or by the power supply. The 30 jobs with the largest number of GPUs.", ("job_id",), [
            ("GPUs", "sum by (job_id) (max by (job_id, node) (lockstep_job_gpus_granted{}))", "none"), ("not used", "sum by (job_id) (lockstep:gpus_unused:count{})", "none"),
            ("busy", "avg by (job_id) (lockstep:gpu_busy:ratio{})", "percentunit"), ("memory, fullest", "max by (job_id) (lockstep:gpu_memory:ratio{})", "percentunit"),
            ("power", "sum by (job_id) (lockstep:gpu_power:watts{})", "watt"), ("energy", joules, "joule"),
            ("slowed", "sum by (job_id) (rate(lockstep_gpu_slowed_seconds_total{}[i])) / sum by (job_id) (rate(lockstep_gpu_measured_seconds_total{}[i]))", "percentunit"),
            ("Xids", "sum by (job_id) (increase(lockstep_gpu_xid_errors_total{}[r]))", "none")],
            ("sum by (job_id) (max by (job_id, node) (lockstep_job_gpus_granted{}))", 30), 16, links=SHOW_JOB),
        heat("GPUs by how busy they are", "All GPUs of all jobs: share of the time in which a kernel ran.", "sum by (le) (lockstep:gpu_busy:bucket)", "percentunit")]),
    ("Staging and caches", [
        graph("Data staged, by origin", "Data of the running jobs on their nodes: read from the source, received from other nodes, or found in the cache.",
              [("sum by (origin) (lockstep_stage_bytes{})", "{{origin}}")], "bytes", stacked=True),
        graph("Cache hits", "Share of the running jobs' sources that were in their node's cache already.", [
            ("sum(lockstep_stage_hits{}) / (sum(lockstep_stage_hits{}) + sum(lockstep_stage_misses{}))", "hits")], "percentunit"),
        graph("State of staging", "Job steps on a node, by the state of their data. `source`: the job reads from the source, because copying failed.",
              [("sum by (state) (lockstep_stage_state{})", "{{state}}")], "none"),
        graph("Largest caches", "Size of the cache on the node's disk. The 20 largest.", [
            (top(20, "lockstep_cache_bytes{}", "node", "last_over_time(lockstep_cache_bytes{}[r])"), "{{node}}")], "bytes"),
        graph("Free for caches", "Share of the cache's file system that users can still fill. Below 5 % an alert fires. The 20 nodes with the smallest free space.", [
            (top(20, "lockstep_cache_filesystem_available_bytes{} / lockstep_cache_filesystem_size_bytes{}", "node", "-last_over_time(lockstep_cache_filesystem_available_bytes{}[r])"), "{{node}}")], "percentunit"),
        bars("Stores by user", "Size of the ten largest users' stores on all nodes together.", "topk(10, sum by (user_name) (lockstep_cache_user_bytes{}))", "{{user_name}}")]),
    exporter()]
    variables = [variable("node", "Node", "Nodes with an exporter.", "label_values(lockstep_exporter_ranks, node)", True)]
    return ("lockstep-cluster", "Lockstep: the cluster", "All training jobs: how many, how efficient, what they wait for; GPUs, suspects, caches and exporters of the nodes.",
            variables, {"": 'node=~"$node"', "R": 'node=~"$node"', "J": "", "N": 'node=~"$node"'}, rows)


def job():
    waits = ("job_id, step_id, node", "last_over_time(lockstep_waited_for_seconds{}[r])")
    slow = f"max by (rank) ({SCORES})"
    rows = [(None, [
        stat("Tokens per second", "Of all ranks, without padding.", "sum(rate(lockstep_tokens_total{}[i]))", "short"),
        stat("Step time", "Mean over the ranks.", "sum(rate(lockstep_step_seconds_sum{}[i])) / sum(rate(lockstep_step_seconds_count{}[i]))", "s"),
        stat("Bound by", f"The largest part of the step. {SHARES}", "topk(1, max by (bound_by) (lockstep:bound:ratio{J}))", "percentunit", legend="{{bound_by}}", text="value_and_name"),
        stat("Goodput", "Share of the ranks' time that trained.", GOODPUT, "percentunit"),
        stat("Slowest ÷ median", "Own time per step of the slowest rank, relative to the median rank. Own time is the step without exposed communication, because that is where a rank waits for others.",
             "max(lockstep:straggler_score:ratio{})", "suffix:×"),
        stat("Padding", "Share of the tokens that are padding.", "max(lockstep:padding:ratio{J})", "percentunit"),
        stat("Energy", "Of the job's GPUs in the chosen range.", "sum(sum_over_time(lockstep:node_gpu_energy:rate{}[r:1m])) * 60", "joule"),
        stat("Ranks running", "Ranks whose process lives.", "sum(lockstep_rank_up{})")]),
    ("Time", [
        graph("Step by phase, mean over ranks", "Seconds per step. The phases add up to the step.", [
            (f"sum by (phase) (lockstep:phase_seconds:rate2m{{J}}) / on () group_left () {STEPS}", "{{phase}}")], "s", 12, True, overrides=COLOURS),
        graph("Parts of the step", SHARES, [("max by (bound_by) (lockstep:bound:ratio{J})", "{{bound_by}}")], "percentunit", 12, True, overrides=COLOURS),
        graph("Median by phase", "Median over steps and ranks of the time in each phase.", [(by_phase(0.5), "{{phase}}")], "s", overrides=COLOURS),
        graph("99th percentile by phase", "99th percentile over steps and ranks of the time in each phase.", [(by_phase(0.99), "{{phase}}")], "s", overrides=COLOURS),
        heat("Step times of all ranks", "Steps per second, by duration.", "sum by (le) (lockstep:step_seconds_bucket:rate2m{J})", "s"),
        graph("Goodput by cause", "What the time of the job's ranks was used for.", [(GOODPUT_BY_CAUSE, "{{cause}}")], "percentunit", 8, True, overrides=COLOURS, maximum=1),
        graph("Checkpoints", "Seconds per step in which checkpoints are written, mean over ranks.", [
            (f'sum(lockstep:phase_seconds:rate2m{{J, phase="checkpoint"}}) / {STEPS}', "checkpoint")], "s"),
        graph("Skipped steps and samples", "Steps per second that the loss scaler skipped, its factor (0 without a loss scaler), and damaged samples per second that the loader left out.", [
            ("sum(rate(lockstep_skipped_steps_total{}[i]))", "skipped steps"), ("max(lockstep_loss_scale{})", "loss scale"), ("sum(rate(lockstep_skipped_samples_total{}[i]))", "damaged samples")])]),
    ("Ranks", [
        heat("Own time ÷ median, all ranks", "Ranks by their own time relative to the median rank. A band above the others is a slow node; a wide band is uneven work.",
             "sum by (le) (lockstep:straggler_score:bucket{J})", "suffix:×", 12),
        panel("barchart", "Step by phase, for the slowest ranks", "Seconds per step now. The 20 ranks with the highest straggler score.", [
            {"expr": top(20, "sum by (rank, phase) (rate(lockstep_phase_seconds_total{R}[i])) / on (rank) group_left () sum by (rank) (rate(lockstep_steps_total{R}[i]))", "rank", slow),
             "instant": True, "range": False, "format": "table"}], "s", 12, overrides=COLOURS,
            options={"orientation": "horizontal", "stacking": "normal", "xField": "rank", "showValue": "never", "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}},
            transformations=[{"id": "groupingToMatrix", "options": {"columnField": "phase", "rowField": "rank", "valueField": "Value"}},
                             {"id": "organize", "options": {"renameByName": {"rank\\phase": "rank"}}}]),
        *ranks_tables(("rank",), SCORES)[:2],
        graph("Waiting for a late rank, by node", "Waiting per step for the rank that the ranks of a node waited for longest, over the last 32 steps. The 20 nodes that wait longest. Empty if nobody waits.",
              [(top(20, "lockstep_waited_for_seconds{}", *waits), "{{node}}")], "s", 12),
        graph("Late rank", "The rank that each of these nodes waits for. A line that stays on one number is a straggler; lines that jump are uneven work.",
              [(top(20, "lockstep_late_rank{}", *waits), "{{node}}")], "none", 12, points=True)]),
    ("Collectives", [
        graph("Bus bandwidth", "As NCCL's tests define it: comparable with the link, and with other numbers of ranks.", [
            ("sum by (collective) (rate(lockstep_collective_bus_bytes_total{}[i])) / sum by (collective) (rate(lockstep_collective_seconds_total{}[i]) > 0)", "{{collective}}")], "binBps"),
        graph("Algorithm bandwidth", "Bytes of the step's collectives, divided by their time.", [
            ("sum by (collective) (rate(lockstep_collective_bytes_total{}[i])) / sum by (collective) (rate(lockstep_collective_seconds_total{}[i]) > 0)", "{{collective}}")], "binBps"),
        graph("Communication and waiting", "Share of the step: communication, hidden behind computation or not, and its part that waits for later ranks.", [
            ("sum(rate(lockstep_comm_transfer_seconds_total{}[i])) / sum(rate(lockstep_step_seconds_sum{}[i]))", "communication"),
            ("sum(rate(lockstep_comm_wait_seconds_total{}[i])) / sum(rate(lockstep_step_seconds_sum{}[i]))", "waiting for later ranks")], "percentunit")]),
    ("GPUs and memory", [
        ranks_tables(("rank",), SCORES)[2],
        heat("GPUs by how busy they are", "Share of the time in which a kernel ran, all GPUs of the job.", "sum by (le) (lockstep:gpu_busy:bucket{J})", "percentunit"),
        graph("GPUs", "Granted to the job, and granted but not used for five minutes.", [
            ("sum(max by (node) (lockstep_job_gpus_granted{}))", "granted"), ("sum(lockstep:gpus_unused:count{})", "not used")], "none"),
        graph("Memory ÷ limit", "Memory of the job on a node, without pages of files. Above 90 % an alert fires. The 20 nodes with the largest share.", [
            (top(20, "lockstep:job_memory:ratio{}", "job_id, node", "last_over_time(lockstep:job_memory:ratio{}[r])"), "{{node}}")], "percentunit")]),
    ("Data", [
        bars("Staged, by origin", "Data of the job on its nodes, each source once: read from the source, received from other nodes, or found in the cache.", "sum by (origin) (lockstep_stage_bytes{})", "{{origin}}"),
        table("Staging, slowest nodes", "Sources that were in the cache (hits) or were copied (misses), the time that staging took before the first task, and how much of the data is there. The 30 nodes on which staging took longest.", ("node",), [
            ("hits", "sum by (node) (lockstep_stage_hits{})", "none"), ("misses", "sum by (node) (lockstep_stage_misses{})", "none"), ("seconds", "sum by (node) (lockstep_stage_seconds{})", "s"),
            ("done", "sum by (node) (lockstep_stage_bytes{}) / sum by (node) (lockstep_stage_expected_bytes{} > 0)", "percentunit"),
            (None, "max by (node, state) (lockstep_stage_state{}) == 1", "none")], ("sum by (node) (lockstep_stage_seconds{})", 30), 8, links=SHOW_NODE),
        graph("Read from packs", "Bytes per second that the loader reads from packed files. The 20 nodes that read most.", [
            (top(20, "sum by (node) (rate(lockstep_read_bytes_total{}[i]))", "node", "sum by (node) (increase(lockstep_read_bytes_total{}[r]))"), "{{node}}")], "binBps")])]
    variables = [variable("job", "Job", "Slurm's job number.", "label_values(lockstep_job_info, job_id)", sort=4),
                 variable("node", "Node", "Nodes of the job.", 'label_values(lockstep_job_info{job_id=~"$job"}, node)', True),
                 variable("rank", "Rank", "Ranks in the panels that show ranks.", 'label_values(lockstep_rank_up{job_id=~"$job", node=~"$node"}, rank)', True, 3)]
    here = 'job_id=~"$job", node=~"$node"'
    return ("lockstep-job", "Lockstep: a training job", "The steps of one job: phases, what bounds them, ranks, bandwidth, GPUs, memory, data.",
            variables, {"": here, "R": here + ', rank=~"$rank"', "J": 'job_id=~"$job"', "N": 'node=~"$node"'}, rows)


def node():
    # The rules' score has no label of the node's exporter, and compares with all nodes; this one is of the node.
    scores = "last_over_time(lockstep_straggler_score{R}[r])"
    live = "sum by (job_id) (lockstep_rank_up{})"
    rows = [(None, [
        stat("Ranks", "Ranks that the node's exporter serves, also those that have just ended.", "sum(lockstep_exporter_ranks{N})", w=4),
        stat("Tokens per second", "Of all ranks on the node, without padding.", "sum(rate(lockstep_tokens_total{}[i]))", "short", 4),
        stat("CPUs in use", "By node_exporter, else by the ranks.", "max(lockstep:node_cpus:rate{N})", "short", 4),
        stat("Memory", "Of the node, by node_exporter; else of the fullest job's limit.", "max(lockstep:node_memory:ratio{N})", "percentunit", 4),
        stat("Free for the cache", "Share of the cache's file system that users can still fill. Below 5 % an alert fires.",
             "min(lockstep_cache_filesystem_available_bytes{N} / lockstep_cache_filesystem_size_bytes{N})", "percentunit", 4),
        stat("Slowest ÷ median", "Own time per step relative to the median of the job's ranks on this node.", "max(lockstep_straggler_score{R})", "suffix:×", 4)]),
    ("Ranks on the node", [
        table("Jobs", "One line for each job with ranks on the node. Own time ÷ median: of this node's ranks, relative to the median rank of the whole job; empty for jobs on one node.", ("job_id",), [
            (None, "max by (job_id, user_name, program, ranks) (lockstep_job_info{})", "none"), ("tokens/s here", "sum by (job_id) (rate(lockstep_tokens_total{}[i]))", "short"),
            ("ranks here", live, "none"), ("own time ÷ median", "max by (job_id) (last_over_time(lockstep:node_own_time:ratio{}[r]))", "suffix:×"),
            ("memory ÷ limit", "max by (job_id) (lockstep:job_memory:ratio{})", "percentunit"), ("GPUs not used", "sum by (job_id) (lockstep:gpus_unused:count{})", "none")], (live, 30), links=SHOW_JOB),
        *ranks_tables(("job_id", "rank"), scores),
        graph("Step by phase", "Share of the step time of the node's ranks in each phase.", [
            ("sum by (phase) (rate(lockstep_phase_seconds_total{R}[i])) / on () group_left () sum(rate(lockstep_phase_seconds_total{R}[i]))", "{{phase}}")], "percentunit", 8, True, overrides=COLOURS),
        graph("99th percentile by phase", "Over the steps of the node's ranks.", [(by_phase(0.99, "rate(lockstep_phase_duration_seconds_bucket{}[i])"), "{{phase}}")], "s", overrides=COLOURS),
        graph("Pages from a disk", "Page-ins per second: by node_exporter, else by the ranks.", [("lockstep:node_page_ins:rate{N}", "page-ins")])]),
    ("Data", [
        graph("Cache", "Size of the cache, its part in the store that all users share, and what its file system has left for users.", [
            *((top(20, f"{name}{{N}}", "node", "last_over_time(lockstep_cache_filesystem_size_bytes{N}[r])"), legend) for name, legend in (
                ("lockstep_cache_bytes", "cache"), ("lockstep_cache_shared_bytes", "shared"), ("lockstep_cache_filesystem_available_bytes", "free")))], "bytes"),
        table("Stores by user", "As lockstep-stage gc measured them last. The 20 largest.", ("user_name",), [
            ("size", "sum by (user_name) (lockstep_cache_user_bytes{N})", "bytes"), ("objects", "sum by (user_name) (lockstep_cache_user_objects{N})", "none")],
            ("sum by (user_name) (lockstep_cache_user_bytes{N})", 20), 8),
        graph("Staged, by job and origin", "Data of the running jobs on this node. The 20 jobs with the largest data.", [
            (top(20, "sum by (job_id, origin) (lockstep_stage_bytes{})", "job_id", "sum by (job_id) (last_over_time(lockstep_stage_bytes{}[r]))"), "job {{job_id}} from {{origin}}")], "bytes")]),
    exporter()]
    variables = [variable("node", "Node", "Nodes with an exporter.", "label_values(lockstep_exporter_ranks, node)"),
                 variable("job", "Job", "Jobs with ranks on the node.", 'label_values(lockstep_job_info{node=~"$node"}, job_id)', True, 4),
                 variable("rank", "Rank", "Ranks in the panels that show ranks.", 'label_values(lockstep_rank_up{node=~"$node", job_id=~"$job"}, rank)', True, 3)]
    return ("lockstep-node", "Lockstep: a node", "The jobs on a node, how its ranks compare, its GPUs, its cache and its exporter.",
            variables, {"": 'node=~"$node", job_id=~"$job"', "R": 'node=~"$node", job_id=~"$job", rank=~"$rank"', "J": 'job_id=~"$job"', "N": 'node=~"$node"'}, rows)


def expand(query, selectors):
    query = re.sub(r"(?<=\w)\{([RJN]?)(, [^}]*)?\}", lambda found: "{" + (selectors[found[1]] + (found[2] or "")).removeprefix(", ") + "}", query)
    return re.sub(r"\[r(:1m)?\]", r"[$__range\1] @ end()", query.replace("[i]", "[$__rate_interval]"))


def place(rows, selectors):
    """The panels from left to right and from top to bottom, with a title above each row."""
    panels, y = [], 0
    for title, members in rows:
        if title:
            panels.append({"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
            y += 1
        x = height = 0
        for member in members:
            w, h = member.pop("w"), member.pop("h")
            if x + w > 24:
                x, y, height = 0, y + height, 0
            panels.append(member | {"gridPos": {"x": x, "y": y, "w": w, "h": h}})
            x, height = x + w, max(height, h)
            for target in member["targets"]:
                target["expr"] = expand(target["expr"], selectors)
        y += height
    return [{"id": i + 1} | each for i, each in enumerate(panels)]


def dashboard(uid, title, what, variables, selectors, rows):
    return {
        "uid": uid, "title": title, "description": what, "tags": ["lockstep"], "schemaVersion": SCHEMA_VERSION, "version": 1, "editable": False,
        "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [{"name": "datasource", "label": "Data Source", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0}, *variables]},
        "annotations": {"list": [{"name": "Alerts", "datasource": DATASOURCE, "enable": True, "iconColor": "red", "titleFormat": "{{alertname}}",
                                  "expr": 'ALERTS{alertname=~"Lockstep.*", alertstate="firing"}', "textFormat": "job {{job_id}} {{node}} {{instance}}"}]},
        "links": [{"type": "dashboards", "title": "Lockstep", "tags": ["lockstep"], "asDropdown": True, "includeVars": True, "keepTime": True}],
        "panels": place(rows, selectors)}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for description in (cluster(), job(), node()):
        (folder / f"{description[0]}.json").write_text(json.dumps(dashboard(*description), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
