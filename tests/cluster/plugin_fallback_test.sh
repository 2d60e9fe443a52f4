#!/usr/bin/env bash
# Nodes whose cache or helper fails: with --stage-on-error=source their tasks read from the source; otherwise the step ends
# on all nodes, and one line gives the reason.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack good 8 4000
make_pack large 8 1000000
make_pack second 8 1000000
clear_caches
keep_configuration
cache=/mnt/local/lockstep
mend_cache() { root_on_node n2 sh -c "umount $cache; chmod -f 755 $cache" 2>/dev/null; }
repair() {
  cluster meter --bandwidth 0 >/dev/null
  mend_cache
  root_on_node n2 umount /mnt/lockstep/bin/lockstep-stage 2>/dev/null
  rm -rf "$prefix"/lib/lockstep/[0-9]*
}
trap 'repair; restore_configuration; cancel_all' EXIT
sum=$(cat "$shared"/plugin_test/large/*.tar | sha256sum)
read_all='cat $LOCKSTEP_DATA/large/*.tar | sha256sum'

# both_read REASON...: the tasks of both nodes have read all data; only n2 printed, once, that it reads from the source
# and the reasons.
both_read() {
  local reason
  assert_equal 2 "$(grep -c -F "$sum" <<<"$output")" "tasks that read all: $output"
  assert_equal 1 "$(grep -c '^lockstep: n2: .*from the source' <<<"$output")" "$output"
  assert_equal 0 "$(grep -c '^lockstep: n1: .*from the source' <<<"$output")" "$output"
  for reason in "$@"; do assert_contains "$output" "$reason"; done
}
from_source() { on_head srun -w n1,n2 -N2 -n2 --stage-on-error=source --stage=$packs/large "$@" 2>&1; }

test_case "n2's cache is read-only: its tasks read from the source, or the step ends on all nodes"
root_on_node n2 sh -c "mkdir -p $cache && mount -t tmpfs -o ro,mode=755 tmpfs $cache"
output=$(from_source bash -c "$read_all")
both_read "Read-only file system"
assert_exit 3 on_head srun -w n1,n2 -N2 -n2 --stage=$packs/large echo started
assert_lacks "$output" "started"
assert_equal 1 "$(lines_of_ours "$output" | grep -vc ': staged ')" "$output"
assert_contains "$output" "lockstep: n2: "
mend_cache

test_case "with a wrong mode of the cache, tasks read from the source, also in batch scripts and in the background"
root_on_node n2 sh -c "mkdir -p $cache && chmod 777 $cache"
output=$(from_source --stage-mode=background bash -c "$read_all")
both_read "must be writable by root alone"
job=$(submit_there -w n2 -N1 -n1 --stage-on-error=source --stage=large --wrap "$read_all")
await_job "$job"
assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$(job_output "$job")"
assert_contains "$(job_output "$job")" "$sum"
mend_cache
no_names() { [ -z "$(root_on_node n2 sh -c 'ls /run/lockstep/links/jobs' 2>/dev/null)" ]; }
wait_until 10 no_names || fail "left on n2: $(root_on_node n2 ls /run/lockstep/links/jobs)"

test_case "data that may not be staged is not read from the source instead"
configure "[debug]" "sources = /mnt/shared/elsewhere"
assert_exit 3 from_source echo started
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
run_and_kill n2 from_source bash -c "$read_all"
both_read "lockstep: n2: staging was ended by signal 9"
assert_equal 0 "$code" "exit code"

test_case "without the fallback one line names the nodes whose helpers were killed: one, all, or the only one of a step"
for nodes in "n2" "n1 n2"; do
  run_and_kill "$nodes" on_head srun -w n1,n2 -N2 -n2 --metrics=on --stage=$packs/large echo started
  assert_equal 3 "$code" "exit code: $output"
  assert_lacks "$output" "started"
  assert_equal "lockstep: ${nodes/ /, }: staging was ended by signal 9" "$(lines_of_ours "$output" | grep -v ': staged ')"
done
run_and_kill n2 on_head srun -w n2 -n2 --stage=$packs/large echo started
assert_equal "3 lockstep: n2: staging was ended by signal 9" "$code $(lines_of_ours "$output")"
newest='cat "$(ls -t /run/lockstep/records/6001/*/staging.json | head -n 1)"'
assert_contains "$(root_on_node n2 sh -c "$newest")" '"state":"failed"'

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
assert_exit 0 on_head srun -w n2 -n1 --stage=$packs/large bash -c "$read_all"
assert_contains "$output" "$sum"
rm -r "$own"

test_case "if a node's helper is missing no node's task starts, also with the fallback"
configure "wait = 2"
root_on_node n2 chmod 644 /run/fake/stage
assert_exit 3 from_source echo started
assert_lacks "$output" "started"
assert_contains "$output" "lockstep: n2: cannot run /mnt/lockstep/bin/lockstep-stage"
assert_contains "$output" "lockstep: n2: did not reach srun within 2 s"

repair
restore_configuration
clear_caches
assert_nothing_left

test_case "the RAM tier has its own store and limit, and is cleaned up as the disk is"
clear_caches
configure "ram = 12M"
output=$(on_head srun -w n1 -n1 --stage-tier=ram --stage=$packs/large sh -c 'stat -f -c %T $LOCKSTEP_DATA; cat $LOCKSTEP_DATA/large/*.tar | sha256sum' 2>/dev/null | xargs)
assert_equal "tmpfs $(xargs <<<"$sum")" "$output"
assert_exit 3 on_head srun -w n1 -n1 --stage-tier=ram --stage=$packs/large,$packs/second echo started
assert_contains "$output" "quota"
assert_equal "" "$(root_on_node n1 sh -c 'ls /dev/shm/lockstep/6001/jobs /dev/shm/lockstep/6001/leases/held | grep -v :' | xargs)" "left in RAM"
root_on_node n1 rm -rf /dev/shm/lockstep

test_case "root follows no links that a user plants in the store"
for at in 6001 6001/jobs 6001/leases 6001/objects 6001/locks; do
  clear_caches
  root_on_node n1 sh -c "mkdir -p /mnt/local/lockstep/6001 /mnt/local/elsewhere && chown alice /mnt/local/lockstep/6001 && rmdir --ignore-fail-on-non-empty /mnt/local/lockstep/$at 2>/dev/null; ln -s /mnt/local/elsewhere /mnt/local/lockstep/$at; chown -h alice /mnt/local/lockstep/$at; chown root /mnt/local/elsewhere"
  output=$(on_head srun -w n1 --stage=$packs/good echo started 2>&1)
  assert_lacks "$output" "started"
  assert_equal 1 "$(lines_of_ours "$output" | wc -l)" "$at: $output"
  assert_equal "root " "$(root_on_node n1 sh -c 'stat -c %U /mnt/local/elsewhere; ls /mnt/local/elsewhere' | xargs) " "the target of the link at $at"
done
root_on_node n1 rmdir /mnt/local/elsewhere
clear_caches

assert_all_idle
