#!/usr/bin/env bash
# A job's step times travel from its ranks' records on two nodes to Prometheus on the head, and stay for a while.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

# A test that fails must not leave a job.
job=
trap '[ -z "$job" ] || on_head scancel "$job" 2>/dev/null' EXIT

command -v prometheus >/dev/null || fail "prometheus is not installed"
assert_within 20 value_is 4 'count(up{job="lockstep"} == 1)'

# The exporters also count what earlier tests on this cluster did to their records.
errors() {
  local what
  for what in record staging cache scrape; do echo "$what $(value "sum(lockstep_exporter_errors_total{what=\"$what\"})")"; done
}
errors_before=$(errors)

on_head bash -c 'cat >simulated_job && chmod +x simulated_job' <"$build/bin/simulated_job"

test_case "all ranks of a job on two nodes are in Prometheus while it runs"
job=$(submit -N2 -n4 --ntasks-per-node=2 --metrics=on <<'SCRIPT'
#!/bin/bash
srun bash -c './simulated_job "$LOCKSTEP_RECORD" --ranks 4 --only $SLURM_PROCID --slow 3 --steps 100000'
SCRIPT
)
mine="job_id=\"$job\""
assert_within 60 value_is 4 "count(lockstep_rank_up{$mine} == 1)"
assert_within 20 value_is 2 "count(lockstep_job_info{$mine, user=\"6001\", ranks=\"4\", step_id=\"0\"})"
assert_within 20 value_is 4 "count(count by (rank) (lockstep_steps_total{$mine} > 10))"
assert_within 30 value_exceeds 0 "rate(lockstep_tokens_total{$mine, rank=\"3\"}[10s])"
phases="sum(rate(lockstep_phase_seconds_total{$mine}[10s]))"
assert_within 30 value_exceeds 0.999 "$phases / sum(rate(lockstep_step_seconds_sum{$mine}[10s]))"
assert_within 30 value_is 3 "label_replace(vector(3), \"rank\", \"3\", \"\", \"\") and on (rank) topk(1, lockstep_straggler_score{$mine})"

test_case "the rules are evaluated for the job"
assert_within 30 value_exceeds 0 "lockstep:tokens:rate{$mine}"
assert_equal "" "$(on_head curl -s http://localhost:9090/api/v1/rules |
  python3 -c 'import json, sys; print(*[r["name"] for g in json.load(sys.stdin)["data"]["groups"] for r in g["rules"] if r["health"] == "err"])')" "rules with errors"

test_case "only the job's user can read its records"
node=$(on_head squeue -h -j "$job" -o %B)
records=/run/lockstep/records/6001/$job.0
output=$(on_node "$node" lockstep-report "$records" --json) || fail "no report: $output"
assert_contains "$output" '"program":"simulated_job"'
assert_exit 1 root_on_node "$node" setpriv --reuid nobody --regid nogroup --clear-groups lockstep-report "$records"

test_case "the job's user finds its live records by the job's number, although nobody but root may list them"
assert_exit 2 on_node "$node" ls /run/lockstep/records/6001
for number in "$job" "$job.0"; do
  for command in "lockstep-report --json" "lockstep-top --json"; do
    # shellcheck disable=SC2086  # two words
    output=$(on_node "$node" $command "$number") || fail "$command $number: $output"
    assert_contains "$output" '"program":"simulated_job"'
  done
done
output=$(on_node "$node" lockstep-top --once "$job")
# 42: the simulated ranks write this number into their records
assert_contains "$output" "these are the ranks on $node; for another node: srun --jobid=42 --overlap"

test_case "other users cannot list the numbers of a user's jobs, also if the admin closes the folder of all records"
as_other() { root_on_node "$node" setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
assert_exit 2 as_other ls /run/lockstep/records/6001
assert_contains "$(root_on_node "$node" setpriv --reuid lockstep --regid lockstep --clear-groups ls /run/lockstep/records/6001)" "$job.0"
root_on_node "$node" chmod 0751 /run/lockstep/records
assert_exit 2 as_other ls /run/lockstep/records
assert_exit 0 on_node "$node" lockstep-report "$records" --json
assert_within 20 value_is 4 "count(lockstep_rank_up{$mine} == 1)"

test_case "after scancel the ranks are down, their last values stay for a while, and the nodes are idle"
on_head scancel "$job"
await_job "$job"
assert_within 20 value_is 4 "count(lockstep_rank_up{$mine} == 0)"
assert_equal 4 "$(value "count(lockstep_steps_total{$mine})")"
assert_equal "$errors_before" "$(errors)" "errors of the exporters"

test_case "with --metrics=off a job has no records and no series"
job=$(submit -N1 -n1 --metrics=off <<'SCRIPT'
#!/bin/bash
srun bash -c '[ -z "$LOCKSTEP_RECORD" ]'
SCRIPT
)
await_job "$job"
assert_equal "COMPLETED 0:0" "$(job_state "$job")"
assert_equal "" "$(value "count(lockstep_job_info{job_id=\"$job\"})")" "series of the job"

on_head rm simulated_job

# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"
keep_configuration
trap 'restore_configuration; [ -z "$job" ] || on_head scancel "$job" 2>/dev/null' EXIT

test_case "one line per node says that there is no group for the records, and the job runs"
configure "group = nosuch"
assert_exit 0 on_head srun -N2 --metrics=on bash -c '[ -z "$LOCKSTEP_RECORD" ] && echo ran'
assert_equal "2 2" "$(grep -c ran <<<"$output") $(grep -c "lockstep: n[1-4]: --metrics has no effect: this node has no group 'nosuch'" <<<"$output")"

test_case "a folder for records that cannot be made is named"
configure "records = /proc/records"
assert_exit 0 on_head srun -N1 --metrics=on true
assert_contains "$output" "--metrics has no effect: "
assert_contains "$output" "/proc/records"

test_case "a node without an exporter is named, once for the step"
configure "records = /run/lockstep/other"
assert_exit 0 on_head srun -w n1,n2 -N2 --metrics=on true  # makes the folder: an exporter may not have seen it yet
assert_exit 0 on_head srun -w n1,n2 -N2 --metrics=on true
assert_equal 1 "$(grep -c "lockstep: n1: no lockstep-exporter runs on this node" <<<"$output")"
assert_lacks "$output" "n2:"
restore_configuration
assert_exit 0 on_head srun -w n1,n2 -N2 --metrics=on true
assert_lacks "$output" "lockstep:"

assert_all_idle
