#!/usr/bin/env bash
# Measures communicator, DDP, staging, planner, loader, launch and pinning for docs/benchmarks and rewrites the tables and
# pictures there: about an hour, as root (three of the cases need the embedded cluster, others drop the page cache and mount
# the metered file system), on a machine that does nothing else.
# Usage: tests/bench/measure.sh [allreduce] [ddp] [nodes] [model] [staging] [faults] [scale] [planner] [loader] [main_job] [launch] [pin] [monitoring] [recovery] [page]
# Default: all.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=build/release/bin
data=build/benchmarks
python3 -c 'import sys; sys.path.insert(0, "tests/bench"); import lines; lines.files()' # those of earlier runs

# The one-minute load of a machine at rest is well below one process.
load=$(cut -d' ' -f1 /proc/loadavg)
awk -v load="$load" 'BEGIN { exit load > 0.5 }' ||
  echo "measure.sh: the load is $load: stop the other programs, because they distort the numbers" >&2

# into FILE COMMAND...: the file changes only when the command has succeeded.
into() {
  local file=$data/$1.jsonl begin=$SECONDS
  shift
  echo "$*" >&2
  "$@" >"$file.new"
  mv "$file.new" "$file"
  echo "  $((SECONDS - begin)) s" >&2
}

allreduce() { into allreduce $bin/bench_allreduce --json --peers --ranks 1,2,3,4; }
ddp() { into ddp $bin/bench_ddp --json --peers; }
nodes() {
  into allreduce_nodes $bin/bench_allreduce --json --peers --ranks 2,4 --nodes 2 --launches 2
  into ddp_nodes $bin/bench_ddp --json --peers --nodes 2 --allocators tuned --measure step
}
# The input of the step model, and the steps that check its predictions.
model() {
  local ranks
  into ddp_trace $bin/bench_ddp --json --measure trace --blocks 8
  for ranks in 1 3 4; do
    into "ddp_ranks$ranks" $bin/bench_ddp --json --ranks $ranks --allocators tuned --measure step \
      --launches 2 --blocks 2
  done
}
staging() {
  into stage $bin/bench_stage --json --peers
  into pack $bin/bench_pack --json --peers --runs 3
  into reader $bin/bench_reader --json --peers
}
# Eight minutes, six of them without a network.
faults() {
  into stage_faults $bin/bench_stage --json --nodes 8 --metered-bytes 268435456 --cases slow_fsync,busy_node,network_away
  into stage_killed $bin/bench_stage --json --nodes 16 --metered-bytes 67108864 --cases node_killed
  into stage_slow_holder $bin/bench_stage --json --nodes 2 --metered-bytes 3e9 --runs 1 --cases slow_holder
}
# About 20 minutes, with 6,000 threads.
scale() {
  into stage_scale $bin/bench_stage --json --simulate 1024 --standard
  into stage_nodes tests/bench/stage_nodes.sh 64 32
}
planner() {
  into planner $bin/bench_planner --json
  into planner_peers $bin/bench_planner --json --peers --samples 200000 --ranks 8,64
  into planner_stream $bin/bench_planner --json --stream 1000000000
  into imbalance $bin/bench_planner --json --peers --runs 1 --samples 200000 --ranks 8,16,32,64,128,256,512
}
# About an hour on one core: width 512 with steps of 8 × 4,096 tokens.
balance() { into balance $bin/bench_balance --json; }
loader() { into loader $bin/bench_loader --json --peers; }
main_job() {
  local bench="$bin/bench_main_job --json"
  into main_job $bench --peers --widths 128,256
  into main_job_512 $bench --peers --widths 512 --cap 2048
  into main_job_techniques $bench --techniques --widths 128
}
launch() { into launch $bin/bench_launch --json --turns 161; }
pin() { into pin $bin/bench_pin --json; }
# Six minutes; Prometheus needs several GB.
monitoring() { into monitoring $bin/bench_monitoring --json --interval 30 --scrapes 10; }
recovery() { into recovery $bin/bench_recovery --json; }
# The pages, and the lines that they are made of.
page() {
  "$(sed -n 's/^LOCKSTEP_PYTHON:.*=//p' build/release/CMakeCache.txt)" tests/bench/page.py
  tar --sort=name --owner=0 --group=0 --mtime=2026-01-01 -C $data --exclude='*.new' --exclude=step_model.json -cJf docs/benchmarks/data.tar.xz .
}

[ $# -gt 0 ] || set -- allreduce ddp nodes model staging faults scale planner balance loader main_job launch pin monitoring recovery page
for part in "$@"; do
  case "$part" in
    allreduce | ddp | nodes | model | staging | faults | scale | planner | balance | loader | main_job | launch | pin | monitoring | recovery | page) "$part" ;;
    *)
      echo "measure.sh: '$part' must be one of allreduce, ddp, nodes, model, staging, faults, scale, planner, balance, loader, main_job, launch," \
        "pin, monitoring, recovery, page" >&2
      exit 2
      ;;
  esac
done
