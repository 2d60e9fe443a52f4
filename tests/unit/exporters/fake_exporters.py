"""Small servers with the names and labels of other exporters, and of jobs that no record is made for.

dcgm-exporter: etc/default-counters.csv of NVIDIA/dcgm-exporter; node_exporter: its text format; slurm-job-exporter:
guilbaults/slurm-job-exporter, port 9798.
"""

import http.server
import threading
import time

BEGIN = time.time()
GPU = "GPU-11223344-5566-7788-99aa-bbccddee%04x"  # those of simulated_job, by rank


class PageServer(http.server.ThreadingHTTPServer):
    def __init__(self, make_page):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(make_page().encode())

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """Prometheus closes connections when a scrape takes too long, and when it ends."""

    def target(self):
        return f"127.0.0.1:{self.server_address[1]}"


def line(name, value, **labels):
    return name + "{" + ",".join(f'{label}="{text}"' for label, text in labels.items()) + f"}} {value}\n"


def dcgm_page():
    """Two of the four GPUs of simulated_job's ranks, and a third one that Slurm granted to job 51 on s1, where it is idle."""
    page = ""
    for gpu, (uuid, busy, job, host) in enumerate([(GPU % 0, 37, "", "n1"), (GPU % 1, 41, "", "n1"), (GPU % 99, 0, "51", "s1")]):
        labels = {"gpu": gpu, "UUID": uuid, "pci_bus_id": f"00000000:0{gpu}:00.0", "device": f"nvidia{gpu}", "modelName": "NVIDIA A100-SXM4-80GB",
                  "Hostname": host, "DCGM_FI_DRIVER_VERSION": "535.129.03"} | ({"hpc_job": job} if job else {})
        page += line("DCGM_FI_DEV_GPU_UTIL", busy, **labels) + line("DCGM_FI_DEV_FB_USED", 20000, **labels) + line("DCGM_FI_DEV_FB_FREE", 60000, **labels)
        page += line("DCGM_FI_DEV_POWER_USAGE", 250.5, **labels) + line("DCGM_FI_DEV_SM_CLOCK", 1200, **labels)
        page += line("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", int(250_000 * (time.time() - BEGIN)), **labels)
        page += line("DCGM_FI_DEV_XID_ERRORS", 0, **labels)
    return page


def node_exporter_page():
    seconds = time.time() - BEGIN
    page = line("node_uname_info", 1, domainname="(none)", machine="x86_64", nodename="n1", release="6.1.0", sysname="Linux", version="#1 SMP")
    page += "node_memory_MemTotal_bytes 4e+11\nnode_memory_MemAvailable_bytes 1e+11\n" + f"node_vmstat_pgmajfault {7 * seconds}\n"
    for cpu in range(8):
        page += line("node_cpu_seconds_total", 0.75 * seconds, cpu=cpu, mode="user") + line("node_cpu_seconds_total", 0.25 * seconds, cpu=cpu, mode="idle")
    return page


def slurm_job_exporter_page():
    """Job 42 has four GPUs and uses two."""
    job = {"user": "alice", "account": "physics", "slurmjobid": "42"}
    page = line("slurm_job_memory_usage", 9e9, **job) + line("slurm_job_memory_rss", 8e9, **job) + line("slurm_job_memory_limit", 1e10, **job)
    for gpu, busy in enumerate((80, 90, 0, 0)):
        page += line("slurm_job_utilization_gpu", busy, **job, gpu=gpu, gpu_type="NVIDIA A100-SXM4-80GB")
    return page


def suspects_page():
    """Three jobs, each with a rank on s1 to s5. s3 works 10 % longer than the others in all of them, s4 only in one. And the
    rank of job 42 that is not on n1."""
    page, seconds = "", time.time() - BEGIN
    other = {"job_id": "42", "step_id": "0", "node": "n2", "rank": 4}
    page += line("lockstep_rank_up", 1, **other) + line("lockstep_steps_total", 50 * seconds, **other)
    page += line("lockstep_phase_seconds_total", 0.85 * seconds, **other, phase="forward")
    page += line("lockstep_phase_seconds_total", 0.15 * seconds, **other, phase="comm_exposed")
    page += line("lockstep_step_seconds_sum", seconds, **other) + line("lockstep_step_seconds_count", 50 * seconds, **other)
    for job in ("51", "52", "53"):
        for rank, node in enumerate(("s1", "s2", "s3", "s4", "s5")):
            labels = {"job_id": job, "step_id": "0", "node": node, "rank": rank}
            own = 0.88 if node == "s3" or (node, job) == ("s4", "52") else 0.8
            page += line("lockstep_rank_up", 1, **labels) + line("lockstep_steps_total", seconds, **labels)
            page += line("lockstep_step_seconds_sum", seconds, **labels) + line("lockstep_step_seconds_count", seconds, **labels)
            page += line("lockstep_phase_seconds_total", own * seconds, **labels, phase="forward")
            page += line("lockstep_phase_seconds_total", (1 - own) * seconds, **labels, phase="comm_exposed")
            page += line("lockstep_gpu_measured_seconds_total", seconds, **labels) + line("lockstep_gpu_slowed_seconds_total", 0.1 * seconds, **labels)
            page += line("lockstep_gpu_xid_errors_total", 1, **labels) + line("lockstep_major_page_faults_total", seconds, **labels)
            page += line("lockstep_job_info", 1, job_id=job, step_id="0", node=node, user="1000", user_name="alice", program="train", ranks=5)
    return page
