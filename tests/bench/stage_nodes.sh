#!/usr/bin/env bash
# Stages a pack on many real Slurm nodes: an embedded cluster with one CPU per node, all on this machine, as root. Prints a
# JSON line for each case: what the busiest node sent (counted by the kernel at its interface) and what all nodes read from
# the source, as shares of the data. All nodes share this machine's processors, so the seconds say little about real ones.
# Exits with 1 if a node sends more than 1.1 times the data, if the source is read more than once (or at all, if a node has
# the data), or if a copy is missing. The successor of a killed node also reads what others read, because it asks nobody else.
# With --link-mbit each node's interface receives at most M Mbit/s, so that two processors can serve more nodes than they
# could at full speed.
# Usage: tests/bench/stage_nodes.sh [--link-mbit M] [NODES] [MIB] [CASE...]
link_mbit=
if [ "${1:-}" = --link-mbit ]; then
  link_mbit=$2
  shift 2
fi
nodes=${1:-64} mib=${2:-64}
shift $(($# < 2 ? $# : 2))
cases=${*:-cold warm one_holder middle_holder sbatch open_files suspended killed}
export LOCKSTEP_TEST_CLUSTER=${LOCKSTEP_TEST_CLUSTER:-tests}-nodes LOCKSTEP_TEST_NODES=$nodes
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/../cluster/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/../cluster/plugin_lib.sh"
trap '"$source_root/tests/cluster/down.sh" >&2' EXIT
"$source_root/tests/cluster/up.sh" >&2 || exit 1

if [ -n "$link_mbit" ]; then
  # shellcheck disable=SC2016  # expands in the inner shell
  as_root sh -c 'for link in /sys/class/net/vn*; do tc qdisc replace dev "${link##*/}" root tbf rate "$1"mbit burst 64kb latency 20ms || exit; done' - "$link_mbit" || exit 1
fi
middle=n$((nodes / 2)) successor=n$((nodes / 2 + 1))
failed=0
make_pack large "$mib" 1048576
bytes=$(cat "$shared"/plugin_test/large/* | wc -c)

# clear_all [EXCEPT]: empties the caches, except that of one node.
clear_all() {
  local machine
  for machine in "$state"/machines/n*; do
    [ "${machine##*/}" = "${1:-}" ] || rm -rf "$machine/local/lockstep"
  done
}
# copies CASE: prints the number of nodes that have all data. A step that ends may stop a copy in the background before it
# gets its name, so there the tasks say so.
copies() {
  local machine copied count=0
  if [ "$1" = killed ]; then
    grep -c "has all" "$state/$1.out"
    return
  fi
  for machine in "$state"/machines/n*; do
    copied=$(cat "$machine"/local/lockstep/*/objects/[!.]*/files/* 2>/dev/null | wc -c)
    [ "$copied" -ge "$bytes" ] && count=$((count + 1))
  done
  echo $count
}
# shellcheck disable=SC2016  # expands in the inner shell
sent() { as_root sh -c 'cd /sys/class/net; for one in vn*; do cat "$one/statistics/rx_bytes"; done'; }
# nodes_read [NODE]: the bytes that a node has read from the source, or all of them.
nodes_read() {
  cluster meter --json | python3 -c 'import json, sys; print(sum(m["bytes_read"] for name, m in json.load(sys.stdin)["machines"].items() if name in (sys.argv[1:] or {name} - {"head"})))' "$@"
}
on_all() { on_head srun -N"$nodes" -n"$nodes" "$@"; }

# measure CASE COMMAND...: prints the case's line.
measure() {
  local name=$1 before begin seconds code=0
  shift
  cluster meter --reset >/dev/null
  before=$(sent)
  begin=$(date +%s%N)
  "$@" >"$state/$name.out" 2>&1 || code=$?
  seconds=$(($(date +%s%N) - begin))
  python3 - "$name" "$nodes" "$bytes" "$seconds" "$code" "$(copies "$name")" "$(nodes_read)" "$(nodes_read "$successor")" "$before" "$(sent)" <<'PYTHON'
import json, sys
name, nodes, size, nanoseconds, code, copies, read, of_successor, before, after = sys.argv[1:]
sent = max(int(new) - int(old) for old, new in zip(before.split(), after.split())) / int(size)
source, successor = int(read) / int(size), int(of_successor) / int(size)
killed = name == "killed"
print(json.dumps({
    "bench": "stage_nodes", "case": name, "nodes": int(nodes), "bytes": int(size), "seconds": round(int(nanoseconds) / 1e9, 2),
    "sent_max_ratio": round(sent, 3), "source_ratio": round(source, 3), "copies": int(copies), "exit_code": int(code),
    **({"successor_ratio": round(successor, 3)} if killed else {}),
}), flush=True)  # fmt: skip
missing = int(nodes) - int(copies) - killed
most = 0.05 if name in ("warm", "one_holder", "middle_holder") else 1.02 + successor if killed else 1.05
sys.exit(int(code) != 0 or missing > 0 or sent > 1.1 or source > most)
PYTHON
  [ $? = 0 ] && return
  failed=1
  echo "FAILED: $name:" >&2
  grep -v ': staged ' "$state/$name.out" | head -n 20 >&2
}

# In the background the tasks wait for their data. The lost node's task lives until its staging process is killed: staging ends
# with the last task of a node.
in_background() {
  # shellcheck disable=SC2016  # expands in the tasks
  on_all --stage=$packs/large --stage-mode=background sh -c \
    'if [ "$SLURMD_NODENAME" = '"$middle"' ]; then until [ -e '"$packs"'/killed ]; do sleep 0.2; done; exit; fi; until [ -z "$(find "$LOCKSTEP_DATA/large" "$LOCKSTEP_DATA/large/" -type l)" ]; do sleep 1; done; echo has all'
}
half_read() { [ "$(nodes_read)" -ge $((bytes / 2)) ]; }
kill_middle() {
  rm -f "$shared/plugin_test/killed"
  in_background &
  wait_until 60 half_read || return 1
  staging_on "$middle" | as_root xargs kill -KILL || fail "no staging process on $middle"
  touch "$shared/plugin_test/killed"
  wait $!
}
suspend() {
  local job
  job=$(submit_there -N"$nodes" --stage-batch=no <<SCRIPT
#!/bin/sh
srun --stage=$packs/large true
SCRIPT
)
  wait_until 60 half_read || return 1
  as_root scontrol suspend "$job"
  sleep 20
  as_root scontrol resume "$job"
  await_job "$job" 300
  job_output "$job"
  [ "$(job_state "$job")" = "COMPLETED 0:0" ]
}
batch() {
  local job
  job=$(submit_there -N"$nodes" --stage=$packs/large <<SCRIPT
#!/bin/sh
srun true
SCRIPT
)
  await_job "$job" 300
  job_output "$job"
  [ "$(job_state "$job")" = "COMPLETED 0:0" ]
}

for case in $cases; do
  clear_all "$(case $case in warm) echo n1 ;; one_holder) echo n1 ;; middle_holder) echo "$middle" ;; esac)"
  case $case in
    warm) on_all --stage=$packs/large true >/dev/null 2>&1 ;;
    one_holder) on_head srun -w n1 -N1 -n1 --stage=$packs/large true 2>/dev/null ;;
    middle_holder) on_head srun -w "$middle" -N1 -n1 --stage=$packs/large true 2>/dev/null ;;
    # So that there is a middle of the copy.
    suspended | killed) cluster meter --bandwidth $((mib * 100000)) >/dev/null ;;
  esac
  case $case in
    cold | warm | one_holder | middle_holder) measure "$case" on_all --stage=$packs/large true ;;
    open_files) measure open_files on_head sh -c "ulimit -Sn 32; exec srun -N$nodes -n$nodes --stage=$packs/large true" ;;
    sbatch) measure sbatch batch ;;
    suspended) measure suspended suspend ;;
    killed) measure killed kill_middle ;;
    *) fail "no case '$case'" ;;
  esac
  cluster meter --bandwidth 0 >/dev/null
done
exit $failed
