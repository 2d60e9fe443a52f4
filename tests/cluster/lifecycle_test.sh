#!/usr/bin/env bash
# The cluster starts, exists once, and leaves nothing behind, also after its processes are killed.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/traces.sh
source "$(dirname "$0")/traces.sh"
picture=$(machine_picture)
remember_supervisor() { supervisor=$(cut -d' ' -f1 "$state/live/supervisor"); }

test_case "up and down have no effect the second time"
own_cluster --nodes 2 --prometheus >/dev/null || fail "up failed"
first=$(cat "$state/live/supervisor")
assert_exit 0 cluster up
assert_contains "$output" "n2 idle"
assert_equal "$first" "$(cat "$state/live/supervisor")" "the same cluster"
remember_supervisor
assert_contains "$(cluster_traces)" "process:"
assert_contains "$(cluster_traces)" "cgroup:"
assert_contains "$(ip -o link)" lockstep
assert_exit 0 cluster down
assert_no_traces
assert_exit 0 cluster down
assert_exit 1 cluster status
assert_exit 1 cluster exec -- true
assert_contains "$output" "is not up"

kill_supervisor() { kill -9 "$supervisor"; }
kill_supervisors_parent() { kill -9 "$(ps -o ppid= -p "$supervisor" | tr -d ' ')"; }
kill_keeper() { kill -9 "$(cut -d' ' -f1 "$state/live/n1.keeper")"; }
kill_service() {
  local number
  number=$(cut -d' ' -f2 "$state/live/$1.$2.state")
  nsenter --target "$supervisor" --pid -- bash -c "kill -9 $number"
}
for victim in "supervisor" "supervisors_parent" "keeper" "service n1 slurmd" "service n1 shared"; do
  test_case "down leaves nothing behind after kill -9 of: $victim"
  cluster up --state "$state" --nodes 2 >/dev/null || fail "up failed"
  remember_supervisor
  # A running job makes the end harder.
  job=$(submit -N2 --wrap 'srun sleep 1000')
  assert_within 20 eval "[[ \$(job_state $job) = RUNNING* ]]"
  if [ "$victim" = "service n1 shared" ] && [ ! -e "$state/live/n1.shared.state" ]; then continue; fi # not metered
  # shellcheck disable=SC2086  # a verb and its arguments
  kill_$victim || fail "cannot kill $victim"
  assert_exit 0 cluster down
  assert_no_traces
done

test_case "up starts the cluster again after the supervisor was killed"
cluster up --state "$state" --nodes 2 >/dev/null || fail "up failed"
remember_supervisor
kill_supervisor
cluster up --state "$state" --nodes 2 >/dev/null || fail "up failed"
remember_supervisor
assert_equal 2 "$(on_head srun -N2 hostname | wc -l)"

test_case "a command of exec ends with its caller"
"$source_root/tests/cluster/embedded/cluster" exec --name "$cluster_name" -- sleep 1000 &
sleeper=$!
assert_within 10 eval "on_head pgrep -xf 'sleep 1000'"
kill -9 $sleeper
assert_within 10 eval "! on_head pgrep -xf 'sleep 1000'"
assert_exit 0 cluster down
assert_no_traces

test_case "simultaneous calls start one cluster"
calls=()
for _ in 1 2 3; do
  "$source_root/tests/cluster/embedded/cluster" up --name "$cluster_name" --state "$state" --nodes 1 >/dev/null &
  calls+=($!)
done
for call in "${calls[@]}"; do wait "$call" || fail "one of the calls failed"; done
assert_equal 1 "$(pgrep -fc "^unshare .*/run/lockstep-cluster/$cluster_name/")" "supervisors"
assert_exit 0 cluster down
assert_no_traces

test_case "kept disks return, and the job numbers continue"
cluster up --state "$state" --nodes 1 >/dev/null || fail "up failed"
job=$(submit --wrap 'hostname >/mnt/local/mark')
await_job "$job"
assert_exit 0 cluster down --keep-disks
cluster up --state "$state" --nodes 1 >/dev/null || fail "up failed"
assert_equal n1 "$(on_node n1 cat /mnt/local/mark)"
assert_equal $((job + 1)) "$(submit --wrap true)"
assert_exit 0 cluster down

test_case "an ordinary user gets a message at once"
# From a copy, because the clone may be below a home folder that others cannot enter.
copy=$(mktemp -d /var/tmp/lockstep-copy.XXXXXX)
cp -r "$source_root/tests/cluster/embedded" "$copy" && chmod -R a+rX "$copy"
assert_exit 1 setpriv --reuid 65534 --clear-groups bash "$copy/embedded/cluster" up --name nobody
rm -rf "$copy"
assert_contains "$output" "needs root"
