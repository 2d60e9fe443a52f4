#!/usr/bin/env bash
# Nodes whose cache or helpers fail: with --stage-on-error=source the step reads from the source; otherwise all its nodes
# end, and a line gives the reason.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack good 8 4000
make_pack large 8 1000000
chmod 777 "$shared/plugin_test"
clear_caches
keep_configuration
cache=/mnt/local/lockstep
repair() {
  cluster meter --bandwidth 0 >/dev/null
  root_on_node n2 sh -c "umount $cache; umount /mnt/lockstep/bin/lockstep-stage; chmod -f 755 $cache" 2>/dev/null
  rm -rf "$prefix"/lib/lockstep/[0-9]*
}
trap 'repair; restore_configuration; cancel_all' EXIT
good_sum=$(cat "$shared"/plugin_test/good/*.tar | sha256sum)
large_sum=$(cat "$shared"/plugin_test/large/*.tar | sha256sum)
read_good='echo "$(hostname) $(cat $LOCKSTEP_DATA/good/*.tar | sha256sum)"'

# both_read SUM REASON...: the tasks of both nodes have read all data; only n2 printed, once, that it reads from the source
# and the reasons.
both_read() {
  local sum=$1 reason
  shift
  assert_equal 2 "$(grep -c -F "$sum" <<<"$output")" "tasks that read all: $output"
  assert_equal 1 "$(grep -c '^lockstep: n2: .*the job reads from the source' <<<"$output")" "$output"
  assert_equal 0 "$(grep -c '^lockstep: n1: .*reads from the source' <<<"$output")" "$output"
  for reason in "$@"; do assert_contains "$output" "$reason"; done
}
from_source() { on_head srun -w n1,n2 -N2 -n2 --stage-on-error=source "$@" 2>&1; }

test_case "with a read-only cache on one node, its tasks read from the source"
root_on_node n2 mkdir -p $cache
root_on_node n2 mount -t tmpfs -o ro,mode=755 tmpfs $cache
output=$(from_source --stage=$packs/good bash -c "$read_good")
both_read "$good_sum" "Read-only file system"
assert_exit 3 on_head srun -w n1,n2 -N2 -n2 --stage=$packs/good echo started
assert_lacks "$output" "started"
root_on_node n2 umount $cache

test_case "with a wrong mode of the cache, tasks read from the source, also in batch scripts and in the background"
root_on_node n2 chmod 777 $cache
output=$(from_source --stage-mode=background --stage=$packs/good bash -c "$read_good")
both_read "$good_sum" "must be writable by root alone"
job=$(submit_there -w n2 -N1 -n1 --stage-on-error=source --stage=good --wrap "$read_good")
await_job "$job"
assert_contains "$(job_output "$job")" "n2 $good_sum"
root_on_node n2 chmod 755 $cache
no_names() { [ -z "$(root_on_node n2 sh -c 'ls /run/lockstep/links/6001/jobs' 2>/dev/null)" ]; }
wait_until 10 no_names || fail "left on n2: $(root_on_node n2 ls /run/lockstep/links/6001/jobs)"

test_case "data that may not be staged is not read from the source instead"
configure "[debug]" "sources = /mnt/shared/elsewhere"
assert_exit 3 from_source --stage=$packs/good echo started
assert_contains "$output" "is outside the folders that may be staged"
assert_equal 1 "$(lines_of_ours "$output" | wc -l)" "$output"
restore_configuration

# run_and_kill NODES COMMAND...: runs the command and kills its helpers on the nodes, as the kernel does when memory runs
# out. Stores the output in $output and the exit code in $code.
run_and_kill() {
  local nodes=$1 node step pids=()
  shift
  clear_caches
  cluster meter --bandwidth 2M >/dev/null
  "$@" >"$state/killed.out" 2>&1 &
  step=$!
  for node in $nodes; do assert_within 20 copying_on "$node"; done
  # shellcheck disable=SC2207
  for node in $nodes; do pids+=($(staging_on "$node")); done
  as_root kill -KILL "${pids[@]}"
  cluster meter --bandwidth 0 >/dev/null
  code=0
  wait $step || code=$?
  output=$(cat "$state/killed.out")
}

test_case "a killed helper is replaced by links to the source, and both nodes run"
run_and_kill n2 from_source --stage=$packs/large bash -c 'cat $LOCKSTEP_DATA/large/*.tar | sha256sum'
both_read "$large_sum" "lockstep: n2: staging was ended by signal 9"
assert_equal 0 "$code" "exit code"

test_case "without the fallback one line names the nodes whose helpers were killed, also if these are all nodes"
run_and_kill "n1 n2" on_head srun -w n1,n2 -N2 -n2 --metrics=on --stage=$packs/large echo started
assert_equal 3 "$code" "exit code: $output"
assert_equal "lockstep: n1, n2: staging was ended by signal 9" "$(lines_of_ours "$output")"
newest='cat "$(ls -t /run/lockstep/records/6001/*/staging.json | head -n 1)"'
assert_contains "$(root_on_node n2 sh -c "$newest")" '"state":"failed"'

test_case "the kill of a background helper shows in the record and in the job's output"
run_and_kill n2 on_head srun -w n2 -n1 --metrics=on --stage-mode=background --stage=$packs/large bash -c \
  'until grep -q "\"state\":\"source\"" $LOCKSTEP_RECORD/staging.json; do [ $SECONDS -lt 20 ] || break; sleep 0.1; done
   grep -o "\"state\":\"[a-z]*\"" $LOCKSTEP_RECORD/staging.json; cat $LOCKSTEP_DATA/large/*.tar | sha256sum'
assert_equal 0 "$code" "exit code: $output"
assert_contains "$output" '"state":"source"'
assert_contains "$output" "$large_sum"
assert_equal "lockstep: n2: staging was ended by signal 9; the job reads from the source" "$(lines_of_ours "$output")"

# helper_on_n2 SCRIPT: replaces lockstep-stage on n2.
helper_on_n2() {
  root_on_node n2 sh -c 'umount /mnt/lockstep/bin/lockstep-stage 2>/dev/null; mkdir -p /run/fake'
  root_on_node n2 sh -c 'cat >/run/fake/stage; chmod 755 /run/fake/stage; mount --bind /run/fake/stage /mnt/lockstep/bin/lockstep-stage' <<<"$1"
}

test_case "a helper that succeeds without staging starts no task"
helper_on_n2 $'#!/bin/sh\nexit 0'
assert_exit 3 on_head srun -w n2 -n1 --stage=$packs/good echo started
assert_equal 1 "$(lines_of_ours "$output" | wc -l)" "$output"
assert_contains "$output" "lockstep: n2: "
assert_contains "$output" "lockstep-stage succeeded, but $packs/good is not in "

test_case "the helper of the plugin's own version is used where it exists, so that an upgrade does not change it"
own=$prefix/lib/lockstep/$("$prefix/bin/lockstep-stage" --version | awk '{ print $2 }')
mkdir "$own" && cp "$prefix/bin/lockstep-stage" "$own" || fail "cannot make $own"
assert_exit 0 on_head srun -w n2 -n1 --stage=$packs/good bash -c "$read_good"
assert_contains "$output" "n2 $good_sum"
rm -r "$own"

test_case "if a node's helper is missing no node's task starts, also with the fallback"
configure "wait = 2"
root_on_node n2 chmod 644 /run/fake/stage
assert_exit 3 from_source --stage=$packs/good echo started
assert_lacks "$output" "started"
assert_contains "$output" "lockstep: n2: cannot run /mnt/lockstep/bin/lockstep-stage"
assert_contains "$output" "lockstep: n2: did not reach srun within 2 s"

repair
restore_configuration
clear_caches
assert_nothing_left
assert_all_idle
