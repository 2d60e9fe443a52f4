#!/usr/bin/env bash
# All of Lockstep on one machine: installs missing packages, builds, starts an embedded Slurm cluster of two nodes, trains a
# language model on the man pages through sbatch, and prints how each rank spent its time.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: examples/quickstart.sh [--keep] [--minutes M] [--torch=pip]
  --keep       keep the cluster and Prometheus running; to stop them: tests/cluster/embedded/cluster down --name quickstart
  --minutes M  duration of the training (default 0.8)
  --torch=pip  train with the current PyTorch from PyPI (which examples/pip_torch.sh downloads: 0.8 GB) instead of
               Debian's LibTorch
Needs Debian 12 or 13 and root. The first run takes about ten minutes (packages, build), later runs about two.
TEXT
}

keep=no
minutes=0.8
preset=user
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=yes ;;
    --torch=pip) preset=user-pip ;;
    --minutes)
      minutes=${2:?"--minutes needs a number"}
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "quickstart: unknown option '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

fail() {
  echo "quickstart: $*" >&2
  exit 1
}
say() { printf '\n== %s\n' "$*"; }

[ "$(id -u)" = 0 ] || fail "needs root to install packages and to start the cluster; run: sudo examples/quickstart.sh"
command -v apt-get >/dev/null ||
  fail "needs Debian 12 or 13; docs/users/own-cluster.md explains how to use an existing cluster"

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
work=$root/build/quickstart
prefix=$work/install
state=$work/cluster
cluster=(tests/cluster/embedded/cluster)
mkdir -p "$work"
begin=$SECONDS

say "packages"
examples/packages.sh build cluster corpus monitoring
if [ $preset = user-pip ]; then
  python3 -m pip --version >/dev/null 2>&1 || examples/packages.sh pip
  LOCKSTEP_TORCH_WHEEL=${LOCKSTEP_TORCH_WHEEL:-$(examples/pip_torch.sh)}
  export LOCKSTEP_TORCH_WHEEL
fi
after_packages=$SECONDS

say "build (log: build/quickstart/build.log)"
if ! { cmake --preset $preset && cmake --build --preset $preset --target tools text_lm metered-fs -j "$(nproc)" &&
  cmake --install build/$preset --prefix "$prefix" --component tools; } >"$work/build.log" 2>&1; then
  tail -n 30 "$work/build.log" >&2
  fail "the build failed; the complete log is $work/build.log"
fi

say "corpus: the man pages, as tokens, packed"
# In pieces of at most 256 tokens: with one long page for each rank and step, the ranks could not share a step evenly.
examples/text_lm/prepare.sh "$work/corpus" --bin build/$preset/bin --max-tokens 256

say "size of a step: lockstep-plan suggest"
# The model's cost for each token (text_lm/train.cpp), as the loader plans with it.
table=$("build/$preset/bin/lockstep-plan" suggest "$work/corpus/manpages" --ranks 4 --cap 1024 --cost 2867,1)
echo "$table"
read -r accumulate step_tokens < <(sed -nE 's/^recommended: .*accumulate = ([0-9]+),.*step_tokens = ([0-9]+).*$/\1 \2/p' <<<"$table")
variables=ALL,MINUTES=$minutes,ACCUMULATE=$accumulate,STEP_TOKENS=$step_tokens
if [ $preset = user-pip ]; then
  # Users of the cluster may have no access to the folder of the wheel, so its libraries go to the prefix.
  mkdir -p "$prefix/torch"
  wheel=$(dirname "$LOCKSTEP_TORCH_WHEEL")
  ldd build/$preset/bin/text_lm | while read -r _ _ library; do
    library=${library% (*}
    case $library in "$wheel"/*) cp -Lu "$library" "$prefix/torch" ;; esac
  done
  variables=$variables,LD_LIBRARY_PATH=/mnt/lockstep/torch
fi

say "cluster: slurmctld and two nodes"
down() {
  if [ $keep = no ]; then "${cluster[@]}" down --name quickstart --state "$state" --keep-disks; fi
}
trap down EXIT
"${cluster[@]}" up --name quickstart --state "$state" --nodes 2 --prefix "$prefix" --prometheus
on_head() { "${cluster[@]}" exec --name quickstart --state "$state" "$@"; }

# The user's files, on the shared file system: the program, its job script, and the data.
home=/mnt/shared/home/alice
on_head --user root -- rm -rf $home/text_lm
on_head --user alice -- mkdir -p $home/text_lm/report /mnt/shared/home/alice/data
tar -C "$work/corpus" -cf - manpages manpages-heldout |
  on_head --user alice -- tar -C $home/data -xf - --keep-newer-files --warning=no-ignore-newer
tar -C build/$preset/bin -cf - text_lm | on_head --user alice -- tar -C $home/text_lm -xf -
tar -C examples/text_lm -cf - text_lm.sbatch | on_head --user alice -- tar -C $home/text_lm -xf -

say "job: sbatch text_lm.sbatch, 4 ranks on 2 nodes"
on_head --user alice --cwd $home/text_lm -- \
  sbatch --wait --output=job.out --export="$variables" text_lm.sbatch &
job=$!
shared=$state/shared/home/alice/text_lm
while [ ! -e "$shared/job.out" ] && kill -0 $job 2>/dev/null; do sleep 0.2; done
tail -n +1 -F --pid=$job "$shared/job.out" 2>/dev/null || true
wait $job || fail "the job failed; its output is above"

say "result"
on_head --user alice --cwd $home/text_lm -- lockstep-report report --out report.html | grep -v '^report:'
cp "$shared/report.html" "$work/report.html"
echo
grep '^perplexity on held-out pages' "$shared/job.out"
# Asks Prometheus for the numbers of the nodes' exporters, as a dashboard does.
prometheus=$("${cluster[@]}" status --name quickstart --state "$state" --json |
  sed -n 's/.*"prometheus":"\([^"]*\)".*/\1/p')
query='sum by (node) (max_over_time(lockstep_tokens_total[10m]))'
answer=$(curl -sS --max-time 10 --get "$prometheus/api/v1/query" --data-urlencode "query=$query")
echo "Prometheus: $prometheus ($(grep -o '"node":"[^"]*"' <<<"$answer" | sort -u | wc -l) nodes with tokens counted)"
echo "report: $work/report.html"
echo "took $((SECONDS - begin)) s, $((after_packages - begin)) s of it for packages"
if [ $keep = yes ]; then
  echo "the cluster keeps running: tests/cluster/embedded/cluster exec --name quickstart -- sinfo"
fi
