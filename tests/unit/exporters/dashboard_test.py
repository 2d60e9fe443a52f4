#!/usr/bin/env python3
"""Every query of the dashboards and every recording rule answers with data: a real Prometheus scrapes a real exporter
that reads real records of a simulated job. Every family that the exporter serves is in a panel or an alert. A large job,
made of copies of its series, shows that no panel asks for more than 200 series. Small servers with the names of
dcgm-exporter, node_exporter and slurm-job-exporter show that the rules join them with our series.

  dashboard_test.py --bin build/release/bin --exporters exporters
"""

import argparse
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from fake_exporters import GPU, PageServer, dcgm_page, node_exporter_page, slurm_job_exporter_page, suspects_page

JOB = "42"
LARGE_JOB, LARGE_NODES = "43", 100  # a node each, with all series of the simulated job's node
MAX_SERIES = 200
RATE_INTERVAL = "10s"
DEADLINE = 60


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def wait_for(what, condition):
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.1)
    sys.exit(f"timed out after {DEADLINE} s, waiting until {what}")


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""


def large_page(page):
    """The page as if each of many nodes ran the simulated job's ranks, with other ranks, as one job."""
    lines = []
    for line in page.splitlines():
        # The histograms are on every rank, and no panel asks for one of them by rank or node.
        if line.startswith("#") or "_bucket{" in line:
            continue
        for before, after in (('job_id="42"', f'job_id="{LARGE_JOB}"'), ('node="n1"', 'node="m\0"'), ('rank="', 'rank="\0' "0"), ('"alice"', '"user\0"')):
            line = line.replace(before, after)
        lines.append(line + "\n")
    of_node = "".join(lines)
    return "".join(of_node.replace("\0", str(node)) for node in range(LARGE_NODES))


class Prometheus:
    def __init__(self, folder, jobs, rules):
        """`jobs`: name, target and instance of each scrape job."""
        self.address = f"127.0.0.1:{free_port()}"
        # The rules' windows fit the scrape interval of production; this test needs a few seconds.
        # And the means over half an hour, which are of jobs with long steps, are of all.
        local_rules = re.sub(r"\[2m\]", f"[{RATE_INTERVAL}]", rules.read_text()).replace("> 1 / 15", "> 1000")
        (folder / "rules.yml").write_text(re.sub(r"(- name: .*)(\n    interval: .*)?", r"\1\n    interval: 1s", local_rules))
        (folder / "prometheus.yml").write_text(
            "global: { scrape_interval: 1s }\n"
            f"rule_files: [{folder}/rules.yml]\n"
            "scrape_configs:\n"
            + "".join(f"  - {{ job_name: {name}, scrape_interval: {'3s' if name == 'large' else '1s'}, "
                      f"static_configs: [ {{ targets: ['{target}'], labels: {{ instance: '{instance}' }} }} ] }}\n" for name, target, instance in jobs)
        )
        self.log = (folder / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address={self.address}"], stdout=self.log, stderr=self.log)

    def query(self, expression):
        answer = get(f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        return json.loads(answer) if answer.startswith("{") else {"status": "error", "error": answer or "no answer"}

    def range_series(self, expression):
        """The number of series of a graph over the last seconds."""
        now = time.time()
        answer = get(f"http://{self.address}/api/v1/query_range?" + urllib.parse.urlencode(
            {"query": expression, "start": now - 8, "end": now, "step": 2}))
        answer = json.loads(answer)
        return len(answer["data"]["result"]) if answer["status"] == "success" else sys.exit(f"{answer}: {expression}")

    def samples(self, expression):
        answer = self.query(expression)
        return answer["data"]["result"] if answer["status"] == "success" else []

    def rules(self):
        groups = json.loads(get(f"http://{self.address}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def label_values(self, query):
        match = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        return {sample["metric"].get(match[2]) for sample in self.samples(match[1])} - {None}


def substitute(query, job=JOB, node="n1", seconds=60):
    for variable, value in {"$__rate_interval": RATE_INTERVAL, "$__range": f"{seconds}s", "$job": job, "$node": node, "$rank": ".*",
                            ":1m]": ":1s]"}.items():  # the jobs of this test live for less than a minute
        query = query.replace(variable, value)
    left = re.findall(r"\$\w+", query)
    return query, left


def dashboard_queries(dashboards):
    for path in sorted(dashboards.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.name}, {panel['title']}", target["expr"], target.get("instant", False)


def check(prometheus, dashboards):
    failures, checked = [], 0
    for where, query, _ in dashboard_queries(dashboards):
        expression, left = substitute(query, node="n1|s[0-9]" if "cluster" in where else "n1")
        if left:
            failures.append(f"{where}: variables {left} have no value: {query}")
            continue
        answer = prometheus.query(expression)
        values = [sample["value"][1] for sample in answer["data"]["result"]] if answer["status"] == "success" else []
        if answer["status"] != "success":
            failures.append(f"{where}: {answer.get('error')}: {expression}")
        elif not values:
            failures.append(f"{where}: no data: {expression}")
        elif "NaN" in values:
            failures.append(f"{where}: not a number: {expression}")
        checked += 1
    for path in sorted(dashboards.glob("*.json")):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                query, _ = substitute(variable["query"]["query"])
                if not prometheus.label_values(query):
                    failures.append(f"{path.name}, variable {variable['name']}: no values: {query}")
                checked += 1
    for rule in prometheus.rules():
        if rule["type"] == "recording":
            labels = ", ".join(f'{name}="{value}"' for name, value in rule.get("labels", {}).items())
            if not prometheus.samples(f"{rule['name']}{{{labels}}}"):
                failures.append(f"recording rule {rule['name']}{{{labels}}}: no data")
            checked += 1
    return checked, failures


def check_families(prometheus, dashboards, page, exporters):
    """Each family that is served is in a panel or in an alert, directly or through recording rules."""
    served = set(re.findall(r"^# TYPE (lockstep_\w+)", page, re.M))
    code = "".join(path.read_text() for part in ("families", "node") for path in (exporters / part).glob("*.cpp"))
    yield from (f"the simulated job does not make the exporter serve {name}" for name in set(re.findall(r'"(lockstep_[a-z_]+)"', code)) - served)
    used = " ".join(query for _, query, _ in dashboard_queries(dashboards))
    rules = prometheus.rules()
    used += " ".join(rule["query"] for rule in rules if rule["type"] == "alerting")
    waiting = [rule for rule in rules if rule["type"] == "recording"]
    while found := [rule for rule in waiting if re.search(rf"(?<!\w){re.escape(rule['name'])}(?![\w:])", used)]:
        used += " ".join(rule["query"] for rule in found)
        waiting = [rule for rule in waiting if rule not in found]
    yield from (f"recording rule {rule['name']} is in no panel and in no alert" for rule in waiting)
    for name in sorted(served):
        if not re.search(rf"(?<!\w){name}(_sum|_count|_bucket)?(?![\w:])", used):
            yield f"{name} is served, but it is in no panel and in no alert"


# Values of rules: with the other exporters, and without them.
JOINED = {
    f'lockstep:gpu_busy:ratio{{job_id="{JOB}", rank="1"}}': 0.41, f'lockstep:gpu_busy:ratio{{job_id="{JOB}", rank="2"}}': 0.8,
    f'lockstep:gpu_memory:ratio{{job_id="{JOB}", rank="1"}}': 0.25, f'lockstep:gpu_memory:ratio{{job_id="{JOB}", rank="2"}}': 0.375,
    f'lockstep:gpu_power:watts{{job_id="{JOB}", rank="1"}}': 250.5, f'lockstep:gpu_power:watts{{job_id="{JOB}", rank="2"}}': 300,
    f'lockstep:gpu_energy:rate{{job_id="{JOB}", rank="1"}}': 250, f'lockstep:gpu_energy:rate{{job_id="{JOB}", rank="2"}}': None,
    f'lockstep:gpu_sm_clock:hertz{{job_id="{JOB}", rank="1"}}': 1.2e9, f'lockstep:gpu_sm_clock:hertz{{job_id="{JOB}", rank="2"}}': 1.41e9,
    f'lockstep:gpu:info{{UUID="{GPU % 3}", job_id="{JOB}", node="n1"}}': 1,
    f'lockstep:gpus_unused:count{{job_id="{JOB}"}}': 2, 'lockstep:gpus_unused:count{job_id="51", node="s1"}': 1,
    f'lockstep:gpus_unused:count{{job_id="{LARGE_JOB}", node="m7"}}': 1,
    f'lockstep:job_memory:ratio{{job_id="{JOB}"}}': 0.8, f'lockstep:job_memory:ratio{{job_id="{LARGE_JOB}", node="m7"}}': 9 / 16,
    'lockstep:node_memory:ratio{node="n1"}': 0.75, 'lockstep:node_memory:ratio{node="m7"}': 9 / 16,
    'lockstep:node_cpus:rate{node="n1"}': 6, 'lockstep:node_cpus:rate{node="m7"}': None,
    'lockstep:node_page_ins:rate{node="n1"}': 7, 'lockstep:node_page_ins:rate{node="s1"}': 3}


def check_joined(prometheus):
    """A rate is too small until scrapes fill its window: each value has until the deadline to become right."""
    end = time.monotonic() + DEADLINE
    for query, value in JOINED.items():
        while True:
            found = [float(sample["value"][1]) for sample in prometheus.samples(query)]
            if len(found) == 1 and (value is None or abs(found[0] - value) <= 0.1 * value):
                break
            if time.monotonic() > end:
                yield f"{query} is {found} instead of {value}"
                break
            time.sleep(0.5)


def check_suspects(prometheus, dashboards):
    """Only the node that is slow in most of its jobs, with its evidence."""
    queries = [query for where, query, _ in dashboard_queries(dashboards) if where.endswith(", Suspects")]
    found = [[(sample["metric"]["node"], round(float(sample["value"][1]), 2)) for sample in prometheus.samples(substitute(query, node=".*")[0])]
             for query in queries[:3]]
    if found != [[("s3", 1.1)], [("s3", 3)], [("s3", 3)]]:
        yield f"the table of suspects has {found}"


def check_energy(prometheus, dashboards):
    """The energy is that of the minutes (here seconds) in which the job was there, not of the whole day: 4 GPUs of 250 or 300 W."""
    query = next(query for where, query, _ in dashboard_queries(dashboards) if where.endswith(", Energy"))
    found = [float(sample["value"][1]) for sample in prometheus.samples(substitute(query, seconds=86400)[0])]
    if len(found) != 1 or found[0] > 1200 * 60 * 300:
        yield f"the energy of a day is {found}"


def check_drawn(prometheus, bin_folder, folder):
    """The page for the pictures of the documents has the panels of the job's dashboard, with Prometheus' figures."""
    page = folder / "dashboard.html"
    script = pathlib.Path(__file__).resolve().parents[2] / "docs/quickstart_pages.py"
    drawn = subprocess.run([sys.executable, "-B", script, "--draw", bin_folder / "draw_panels", "--prometheus", f"http://{prometheus.address}", "--job", JOB,
                            "--page", page], capture_output=True, text=True)
    if drawn.returncode != 0:
        yield f"no page of a dashboard: {drawn.stderr}"
        return
    text = page.read_text()
    panels = re.findall(r"<h2>([^<]+)</h2>(.*?)</div>\n(?:<div style=\"grid|</div>)", text, re.DOTALL)
    if len(panels) < 30 or len({title for title, _ in panels}) != len(panels):
        yield f"the page of the dashboard has {len(panels)} panels: {[title for title, _ in panels]}"
    contents = dict(panels)
    for title, expected in {"Bound by": r"<b>compute 8\d", "Ranks running": "<b>5 ?</b>", "Step by phase, mean over ranks": '<polygon[^>]*fill="#0072B2"',
                            "Own time ÷ median, all ranks": "≤ 1.15 ×.*fill-opacity", "Slowest ranks": "<td>1.1[0-9]? ×</td>", "Memory ÷ limit": "<polyline"}.items():
        if not re.search(expected, contents.get(title, ""), re.DOTALL):
            yield f"the panel '{title}' of the page is {contents.get(title)}"


def check_large_job(prometheus, dashboards):
    series = {}
    for where, query, instant in dashboard_queries(dashboards):
        expression, _ = substitute(query, job=LARGE_JOB, node=".*")
        count = len(prometheus.samples(expression)) if instant else prometheus.range_series(expression)
        series[where] = series.get(where, 0) + count
    if max(series.values()) < 20:
        yield f"the large job is in no panel: {series}"
    for where, count in series.items():
        if count > MAX_SERIES:
            yield f"{where}: {count} series for a job on {LARGE_NODES} nodes, more than {MAX_SERIES}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--exporters", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    processes = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        dashboards = folder / "dashboards"
        subprocess.run([sys.executable, arguments.exporters / "dashboards/dashboards.py", dashboards], check=True)
        (folder / "cache").mkdir()
        (folder / "cache/usage.json").write_text(json.dumps({"version": 1, "written": int(time.time()), "total": 12000, "shared":
            2000, "users": [{"user": "alice", "bytes": 10000, "objects": 2}]}))
        try:
            job = subprocess.Popen([arguments.bin / "simulated_job", folder / f"records/1000/{JOB}.0", "--steps", "1000000",
                                    "--slow", "1", "--resources"], stdin=subprocess.DEVNULL)
            processes.append(job)
            exporter = subprocess.Popen([arguments.bin / "lockstep-exporter", "--records", folder / "records", "--cache",
                                         folder / "cache", "--listen", "127.0.0.1:0", "--node", "n1", "--json"],
                                        stdout=subprocess.PIPE, text=True)
            processes.append(exporter)
            url = json.loads(exporter.stdout.readline())["url"]
            jobs = [("lockstep", urllib.parse.urlparse(url).netloc, "n1:9753"), ("large", PageServer(lambda: large_page(get(url))).target(), "large"),
                    ("suspects", PageServer(suspects_page).target(), "suspects"), ("dcgm", PageServer(dcgm_page).target(), "n1:9400"),
                    ("node", PageServer(node_exporter_page).target(), "n1:9100"), ("slurm", PageServer(slurm_job_exporter_page).target(), "n1:9798")]
            prometheus = Prometheus(folder, jobs, arguments.exporters / "rules/lockstep.rules.yml")
            processes.append(prometheus.process)
            # Rates need a few scrapes; rules that use other rules need one more round.
            wait_for("Prometheus has the rules' last series",
                     lambda: prometheus.samples("lockstep:straggler_score:ratio")
                     and prometheus.samples('lockstep:bound:ratio{bound_by="input"}')
                     and prometheus.samples('lockstep:gpus_unused:count{job_id="51"}')
                     and prometheus.samples('lockstep:node_own_time:ratio{node="n1"}'))
            wait_for("Prometheus has the large job's scores", lambda: len(prometheus.samples(
                f'lockstep:straggler_score:ratio{{job_id="{LARGE_JOB}"}}')) > MAX_SERIES)
            checked, failures = check(prometheus, dashboards)
            failures += check_families(prometheus, dashboards, get(url), arguments.exporters)
            failures += check_joined(prometheus)
            failures += check_suspects(prometheus, dashboards)
            failures += check_energy(prometheus, dashboards)
            failures += check_drawn(prometheus, arguments.bin.resolve(), folder)
            failures += check_large_job(prometheus, dashboards)
            slow = prometheus.samples(f'topk(1, lockstep:straggler_score:ratio{{job_id="{JOB}"}})')
            if [sample["metric"]["rank"] for sample in slow] != ["1"]:
                failures.append(f"the slow rank was not found: {slow}")
            lint = subprocess.run(["promtool", "check", "metrics"], input=get(url), text=True, capture_output=True)
            if lint.returncode != 0 or lint.stderr.strip():
                failures.append("promtool check metrics: " + lint.stdout + lint.stderr)
            exporter.send_signal(signal.SIGTERM)
            if exporter.wait(timeout=20) != 0:
                failures.append(f"the exporter ended with {exporter.returncode} on SIGTERM")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"{checked} queries, {len(failures)} failures")
    sys.exit(1 if failures or checked < 20 else 0)


if __name__ == "__main__":
    main()
