#!/usr/bin/env bash
# Staging through srun on several nodes: the data that tasks see, reuse, and failures, which end all nodes.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack good 8 4000
make_pack large 12 4000000
clear_caches

test_case "the first job copies, the second finds the copy"
first=$(on_head srun -w n1,n2 -N2 -n4 --stage=$packs/good true 2>&1 | sort)
assert_equal 2 "$(grep -c -E '^lockstep: n[12]: staged good: .* in .* \(miss\)$' <<<"$first")" "lines in '$first'"
second=$(on_head srun -w n1,n2 -N2 -n4 --stage=$packs/good true 2>&1 | sort)
assert_equal 2 "$(grep -c -E '^lockstep: n[12]: staged good: .* in .* \(hit\)$' <<<"$second")" "lines in '$second'"

test_case "tasks read local files with the source's content"
sums=$(on_head srun -w n1,n2 -N2 -n2 --stage=$packs/good bash -c 'cd $LOCKSTEP_DATA && stat -f -c %T . && cat good/* | sha256sum' 2>/dev/null | sort -u)
assert_contains "$sums" "$(cat "$shared"/plugin_test/good/* | sha256sum)"
assert_equal 2 "$(wc -l <<<"$sums")" "the same file system and the same bytes on both nodes: $sums"

test_case "the job's folder ends with the job, the cache stays"
assert_nothing_left
assert_equal 1 "$(root_on_node n1 sh -c 'ls /mnt/local/lockstep/*/objects | wc -l')" "objects in the cache"

test_case "the next step of a job finds the data staged, also on fewer nodes"
output=$(on_head salloc -w n1,n2 -N2 sh -c "srun -n2 --stage=$packs/good true; srun -N1 -n1 --stage=$packs/good ls -R \$LOCKSTEP_DATA; srun -n2 --stage=$packs/good,$packs/large true" 2>&1)
assert_equal 0 "$(grep -c 'staged good:.*(miss)' <<<"$output")" "copies of good in '$output'"
assert_equal 2 "$(grep -c 'staged .*large: ' <<<"$output")" "lines about large in '$output'"

test_case "a batch script finds its node's data"
job=$(submit_there -w n1,n2 -N2 --stage=good --wrap 'ls $LOCKSTEP_DATA/good; srun -n2 hostname')
await_job "$job"
assert_contains "$(job_output "$job")" "index.lockstep"
assert_equal "COMPLETED 0:0" "$(job_state "$job")"

test_case "with --stage-batch=no only the steps of srun stage"
job=$(submit_there -w n1,n2 -N2 --stage=good --stage-batch=no --wrap 'echo "script: $LOCKSTEP_DATA."; srun -n2 sh -c "ls \$LOCKSTEP_DATA/good"')
await_job "$job"
assert_contains "$(job_output "$job")" "script: ."
assert_equal 2 "$(job_output "$job" | grep -c '^index.lockstep$')" "tasks that find the data"

test_case "the record's folder belongs to the user and the exporter's group, and contains the result of staging"
output=$(on_head srun -w n1,n2 -N2 -n2 --metrics=on --stage=$packs/good sh -c 'stat -c "%U:%G %a" $LOCKSTEP_RECORD; stat -c "%U:%G %a" $LOCKSTEP_RECORD/staging.json; cat $LOCKSTEP_RECORD/staging.json' 2>/dev/null)
assert_equal 2 "$(grep -c '^alice:lockstep 2750$' <<<"$output")" "folders in '$output'"
assert_equal 2 "$(grep -c '^alice:lockstep 640$' <<<"$output")" "files in '$output'"
assert_contains "$output" '"hit":true'
output=$(on_head srun -n1 --stage=$packs/good sh -c 'echo "record: $LOCKSTEP_RECORD."' 2>/dev/null)
assert_equal "record: ." "$output"

test_case "records of ended jobs stay for keep_records; the end of a later job removes them"
keep_configuration
trap 'restore_configuration; cancel_all' EXIT
records() { root_on_node n1 ls /run/lockstep/records/6001; }
on_head srun -w n1 -n1 --metrics=on true
assert_all_idle
[ -n "$(records)" ] || fail "no records of a job that has ended"
job=$(submit_there -w n1 -n1 --metrics=on --wrap 'srun true; sleep 1000')
configure "keep_records = 0"
on_head srun -w n1 -n1 true
only_its_own() { [ "$(records | cut -d. -f1 | sort -u)" = "$job" ]; }
wait_until 30 only_its_own || fail "left: $(records)"
on_head scancel "$job"
await_job "$job"
no_records() { [ -z "$(records)" ]; }
wait_until 30 no_records || fail "left: $(records)"
restore_configuration

# failed_step: one line of the plugin, the same exit code for the tasks of every node, and no task has started.
failed_step() {
  assert_exit 3 "$@"
  assert_equal 1 "$(lines_of_ours "$output" | wc -l)" "lines of the plugin in '$output'"
  assert_lacks "$output" "started"
  assert_contains "$output" "n1: tasks 0-1: Exited with exit code 3"
  assert_contains "$output" "n2: tasks 2-3: Exited with exit code 3"
}

test_case "an invalid source that only the nodes can see ends the whole step with one line naming nodes and path"
configure "check_sources = no"
rm -rf "$shared/plugin_test/secret"
cp -r "$shared/plugin_test/good" "$shared/plugin_test/secret"
chmod 700 "$shared/plugin_test/secret"
declare -A bad=([missing]="No such file" [secret]="Permission denied")
for source in "${!bad[@]}"; do
  failed_step on_head srun -w n1,n2 -N2 -n4 --stage="$packs/$source" echo started
  assert_contains "$output" "lockstep: n1"
  assert_contains "$output" "${bad[$source]}"
  assert_contains "$output" "$packs/$source"
done
job=$(submit_there -w n1,n2 -N2 -n4 --stage=missing --wrap 'echo started')
await_job "$job"
assert_equal "FAILED 3:0" "$(job_state "$job")"
assert_equal 1 "$(job_output "$job" | grep -c "^lockstep: n1: $packs/missing: No such file")" "$(job_output "$job")"
restore_configuration

test_case "another node's failure stops a node that still copies, before any task starts"
clear_caches
cluster meter --bandwidth 2M >/dev/null
root_on_node n2 sh -c 'touch /mnt/local/lockstep'
begin=$SECONDS
failed=$(on_head srun -w n1,n2 -N2 -n4 --stage=$packs/large echo started 2>&1 || true)
cluster meter --bandwidth 0 >/dev/null
root_on_node n2 rm -f /mnt/local/lockstep
assert_at_most 6 $((SECONDS - begin)) "seconds until the step ended"
assert_equal 1 "$(lines_of_ours "$failed" | wc -l)" "lines of the plugin in '$failed'"
assert_contains "$failed" "lockstep: n2: cannot open /mnt/local/lockstep"
assert_lacks "$failed" "started"
assert_contains "$failed" "n1: tasks 0-1: Exited with exit code 3"

assert_nothing_left
assert_all_idle
