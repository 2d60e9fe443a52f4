#!/usr/bin/env python3
"""Measures what a large job costs a Prometheus with our rules and dashboards: a real Prometheus scrapes as many nodes as the job
has. One exporter serves the records of a simulated job on one node, and this program serves copies of its page, with other nodes and
ranks. Then every query of the dashboards is asked once."""

import http.server
import json
import pathlib
import re
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import program
from ranks import Failure, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/unit/exporters"))
import dashboard_test  # noqa: E402


def arguments():
    parser = program.parser("bench_monitoring", __doc__)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=8, help="of each node")
    parser.add_argument("--interval", type=int, default=15, help="seconds between scrapes")
    parser.add_argument("--scrapes", type=int, default=16, help="of each node, before the queries")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.nodes, chosen.ranks, chosen.interval, chosen.scrapes = 4, 2, 1, 12
    return chosen


class Nodes(http.server.ThreadingHTTPServer):
    """Serves /NUMBER: the page of that node."""

    request_queue_size = 1024

    def __init__(self, url, chosen):
        self.url, self.chosen, self.page, self.fetched = url, chosen, "", 0.0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Page)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def page_of(self, node):
        with self.lock:
            if time.monotonic() > self.fetched + self.chosen.interval:
                with urllib.request.urlopen(self.url, timeout=20) as answer:
                    self.page, self.fetched = answer.read().decode(), time.monotonic()
        page = self.page.replace('node="n1"', f'node="m{node}"').replace("GPU-11223344", f"GPU-{node:08x}")
        return re.sub(r'rank="(\d+)"', lambda rank: f'rank="{node * self.chosen.ranks + int(rank[1])}"', page)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        page = self.server.page_of(int(self.path[1:])).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


def configuration(folder, nodes, chosen):
    (folder / "rules.yml").write_text((ROOT / "exporters/rules/lockstep.rules.yml").read_text())
    target = f"127.0.0.1:{nodes.server_address[1]}"
    targets = [{"targets": [target], "labels": {"__metrics_path__": f"/{node}", "instance": f"m{node}:9753"}} for node in range(chosen.nodes)]
    (folder / "prometheus.json").write_text(json.dumps({  # JSON is YAML
        "global": {"scrape_interval": f"{chosen.interval}s", "evaluation_interval": f"{chosen.interval}s"},
        "rule_files": [str(folder / "rules.yml")], "scrape_configs": [{"job_name": "lockstep", "static_configs": targets}]}))  # fmt: skip
    return folder / "prometheus.json"


def figures(address):
    """Prometheus' own."""
    text = dashboard_test.get(f"http://{address}/metrics")
    of = lambda name: [float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)]
    return {"series": int(of("prometheus_tsdb_head_series")[0]), "memory_bytes": int(of("process_resident_memory_bytes")[0]),
            "processor_seconds": of("process_cpu_seconds_total")[0], "rules_seconds": max(of("prometheus_rule_group_last_duration_seconds")),
            "missed": int(sum(of("prometheus_rule_group_iterations_missed_total"))), "failed": int(sum(of("prometheus_rule_evaluation_failures_total")))}  # fmt: skip


def ask(address, expression, instant, seconds):
    """The number of series, and how long the answer took."""
    now = time.time()
    path = "query?" if instant else f"query_range?start={now - seconds}&end={now}&step=15&"
    begin = time.monotonic()
    answer = dashboard_test.get(f"http://{address}/api/v1/{path}" + urllib.parse.urlencode({"query": expression}))
    took = time.monotonic() - begin
    answer = json.loads(answer or "{}")
    if answer.get("status") != "success":
        raise Failure(f"{expression}: {answer.get('error', 'no answer')}")
    return len(answer["data"]["result"]), took


def measure(chosen, folder):
    programs = pathlib.Path(chosen.programs).resolve()
    job = [programs / "simulated_job", folder / "records/1000/42.0", "--ranks", chosen.ranks, "--steps", 10**6, "--resources"]
    exporter = [programs / "lockstep-exporter", "--records", folder / "records", "--listen", "127.0.0.1:0", "--node", "n1", "--json"]
    address, seconds = f"127.0.0.1:{dashboard_test.free_port()}", chosen.interval * chosen.scrapes
    dashboard_test.RATE_INTERVAL = f"{4 * chosen.interval}s"
    with program.started(job), program.started(exporter, stdout=-1, text=True) as served:
        nodes = Nodes(json.loads(served.stdout.readline())["url"], chosen)
        prometheus = ["prometheus", f"--config.file={configuration(folder, nodes, chosen)}", f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address={address}"]
        with (folder / "prometheus.log").open("w") as log, program.started(prometheus, stdout=log, stderr=log):
            time.sleep(seconds)  # that many scrapes are the input, not a condition
            used = figures(address)
            slowest, most = (0.0, ""), (0, "")
            for where, query, instant in dashboard_test.dashboard_queries(folder / "dashboards"):
                expression, _ = dashboard_test.substitute(query, node="m1" if "lockstep-node" in where else ".*", seconds=seconds)
                count, took = ask(address, expression.replace(":1s]", ":1m]"), instant, seconds)
                slowest, most = max(slowest, (took, where)), max(most, (count, where))
    yield {"bench": "monitoring", "nodes": chosen.nodes, "ranks": chosen.nodes * chosen.ranks, "interval": chosen.interval, "scrapes": chosen.scrapes,
           **used, "slowest_query_seconds": round(slowest[0], 3), "slowest_query": slowest[1], "series_max": most[0], "series_max_panel": most[1]}  # fmt: skip


def main():
    chosen = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run([sys.executable, ROOT / "exporters/dashboards/dashboards.py", folder / "dashboards"], "dashboards.py")
        program.show(measure(chosen, folder))


program.run("bench_monitoring", main)
