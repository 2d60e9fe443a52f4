#!/usr/bin/env bash
# The steps of a PyTorch job (Python, DDP over Gloo) on two nodes are in Prometheus while it runs, and in the report after it.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null || { echo "skipped: python3-torch is not installed"; exit 77; }
command -v prometheus >/dev/null || fail "prometheus is not installed"

job=
trap '[ -z "$job" ] || on_head scancel "$job" 2>/dev/null; on_head rm -rf train.py stop python_report' EXIT
on_head rm -rf stop python_report
on_head bash -c 'cat >train.py' <<'PYTHON'
import os
import lockstep
import torch
import torch.distributed as dist

dist.init_process_group("gloo", rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_NTASKS"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(4096, 64))
stop = torch.zeros(1)
while not stop:
    for (batch,) in lockstep.batches(torch.utils.data.DataLoader(data, batch_size=128, num_workers=1)):
        with lockstep.phase("forward"):
            loss = model(batch).square().mean()
        with lockstep.phase("backward"):
            loss.backward()
        with lockstep.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        lockstep.end_step(tokens=batch.numel(), samples=len(batch))
    stop += os.path.exists("stop")
    with lockstep.phase("comm_exposed"):
        dist.all_reduce(stop)
PYTHON

test_case "all ranks of a PyTorch job on two nodes are in Prometheus while it runs"
job=$(submit -N2 -n4 --ntasks-per-node=2 --metrics=on <<'SCRIPT'
#!/bin/bash
export PYTHONPATH=/mnt/lockstep/share/lockstep/python LOCKSTEP_REPORT_DIR=$PWD/python_report OMP_NUM_THREADS=1 USE_LIBUV=0
MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=29555 srun /usr/bin/python3 train.py
SCRIPT
)
mine="job_id=\"$job\""
assert_within 90 value_is 4 "count(lockstep_rank_up{$mine} == 1)"
assert_within 60 value_is 4 "count(lockstep_steps_total{$mine} > 40)"
assert_within 30 value_is 2 "count(lockstep_job_info{$mine, user=\"6001\", user_name=\"alice\", program=\"train.py\", ranks=\"4\"})"

test_case "when it ends each rank leaves its record for the report"
on_head touch stop
await_job "$job"
assert_equal "COMPLETED 0:0" "$(job_state "$job")"
assert_equal "" "$(job_output "$job" | grep lockstep)" "lines of lockstep.py"
report=$(on_head lockstep-report python_report --json) || fail "no report: $report"
python3 - "$job" "$report" <<'PYTHON' || fail "the report is wrong: $report"
import json, sys
run = json.loads(sys.argv[2])
assert (run["job"], run["size"], run["state"], run["program"]) == (int(sys.argv[1]), 4, "finished", "train.py"), run
assert [rank["rank"] for rank in run["ranks"]] == [0, 1, 2, 3] and len({rank["node"] for rank in run["ranks"]}) == 2
for rank in run["ranks"]:
    assert rank["steps"] % 32 == 0 and rank["tokens"] == rank["steps"] * 128 * 64
    assert abs(sum(rank["phases_ms"].values()) - rank["step_ms"]) < 1e-6
PYTHON
job=
assert_all_idle
