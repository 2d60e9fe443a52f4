#!/usr/bin/env bash
# Leases: the kernel's lock protects the data of a running step and ends with the step, however that ends.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack good 8 4000
clear_caches
trap 'end_steps; cancel_all' EXIT
held=/mnt/local/lockstep/6001/leases/held

# Starts a step that runs until the file `stop` exists. Sets $job; returns when the tasks run.
long_step() {
  rm -f "$shared/plugin_test/stop"
  job=$(submit_there "$@" <<'SCRIPT'
#!/bin/bash
srun --stage=good sh -c 'touch up-$SLURM_JOB_ID-$SLURM_PROCID; until [ -e stop ]; do sleep 0.1; done'
SCRIPT
)
  assert_within 30 test -e "$shared/plugin_test/up-$job-0"
}
end_steps() { touch "$shared/plugin_test/stop"; }
chmod 777 "$shared/plugin_test"

# locked_on NODE JOB.STEP: /proc/locks has a lock on that lease, and nobody can lock it exclusively.
locked_on() {
  root_on_node "$1" sh -c "inode=\$(stat -c %i $held/$2) && grep -q \"FLOCK .* READ .*:\$inode 0 EOF\" /proc/locks && ! flock -xn $held/$2 true"
}
# free_on NODE JOB.STEP: the name is gone, or can be locked exclusively.
free_on() { root_on_node "$1" sh -c "[ ! -e $held/$2 ] || flock -xn $held/$2 true"; }

test_case "a step's lease is held on every node while its tasks run"
long_step -w n1,n2 -N2
for node in n1 n2; do
  locked_on $node "$job.0" || fail "nobody holds $job.0 on $node: $(root_on_node $node ls -la $held; root_on_node $node cat /proc/locks)"
  assert_equal "alice 600" "$(root_on_node $node stat -c '%U %a' "$held/$job.0")"
done

test_case "the tasks' programs have no descriptor of the lease"
fds=$(root_on_node n1 sh -c "ls -l /proc/\$(pgrep -f '^[^ ]*sh -c touch up' | head -n 1)/fd")
assert_contains "$fds" "pipe:"
assert_lacks "$fds" "leases"

test_case "the end of the step removes the lease"
end_steps
await_job "$job"
for node in n1 n2; do assert_equal "" "$(root_on_node $node ls $held)" "names in $held of $node"; done

test_case "simultaneous steps of a job have one lease each"
rm -f "$shared/plugin_test/stop"
job=$(submit_there -w n1 -N1 -n2 --stage=good <<'SCRIPT'
#!/bin/bash
for i in 0 1; do
  srun --exact -n1 sh -c 'touch up-$SLURM_JOB_ID-$SLURM_STEP_ID; until [ -e stop ]; do sleep 0.1; done' &
done
wait
SCRIPT
)
for step in 0 1; do
  assert_within 30 test -e "$shared/plugin_test/up-$job-$step"
  locked_on n1 "$job.$step" || fail "nobody holds $job.$step: $(root_on_node n1 ls $held)"
done
locked_on n1 "$job.batch" || fail "nobody holds $job.batch: $(root_on_node n1 ls $held)"
end_steps
await_job "$job"

test_case "a batch script has a lease, too"
job=$(submit_there -w n1 -N1 -n1 --stage=good --wrap 'touch up-$SLURM_JOB_ID-0; until [ -e stop ]; do sleep 0.1; done')
rm -f "$shared/plugin_test/stop"
assert_within 30 test -e "$shared/plugin_test/up-$job-0"
locked_on n1 "$job.batch" || fail "nobody holds $job.batch: $(root_on_node n1 ls -la $held)"

test_case "scancel frees the lease"
on_head scancel "$job"
await_job "$job"
assert_within 10 free_on n1 "$job.batch"

test_case "kill -9 of slurmstepd frees the lease"
long_step -w n1 -N1
as_root pkill -KILL -f "slurmstepd: \[$job\.0\]" || fail "no slurmstepd of $job.0"
assert_within 10 free_on n1 "$job.0"
# srun does not notice; the tasks continue with their hard links to the data.
end_steps
on_head scancel "$job"
await_job "$job"

test_case "the lease is held while slurmd is killed and restarted"
long_step -w n1 -N1
cluster kill n1
locked_on n1 "$job.0" || fail "the lease was freed when slurmd ended"
cluster restart n1
locked_on n1 "$job.0" || fail "the lease was freed when slurmd started again"
end_steps
await_job "$job"
assert_within 10 free_on n1 "$job.0"
assert_equal "COMPLETED 0:0" "$(job_state "$job")"

test_case "a lease that cannot be taken ends the step with one line"
root_on_node n1 sh -c "rm -rf $held; ln -s /etc $held"
assert_exit 3 on_head srun -w n1 --stage=$packs/good true
root_on_node n1 rm $held
assert_equal 1 "$(lines_of_ours "$output" | wc -l)" "$output"
assert_contains "$output" "lockstep: n1: cannot open $held: it is a link"

rm -f "$shared"/plugin_test/up-*
assert_nothing_left
assert_all_idle
