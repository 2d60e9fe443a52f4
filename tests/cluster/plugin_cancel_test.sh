#!/usr/bin/env bash
# A job that is cancelled, requeued or out of time during staging: its nodes are free within seconds, its program never
# starts, even if the source becomes fast again, and nothing is left. Slurm's usual KillWait: after it, SIGKILL would hide a
# task that does not notice SIGTERM.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"
own_cluster --nodes 2 --prefix "$prefix" --kill-wait 30 >/dev/null || fail "up failed"

make_pack large 12 4000000

copying_on() { root_on_node "$1" sh -c 'ls /mnt/local/lockstep/*/objects/.incoming-*/files/*.tar'; }

# slow_copy NODE...: waits until these nodes copy for the job that was just submitted. Then the copy takes minutes.
slow_copy() {
  local node
  for node in "$@"; do
    assert_within 20 staging_on "$node"
    assert_within 20 copying_on "$node"
  done
  cluster meter --bandwidth 200K >/dev/null
}
slow_source() {
  cluster meter --bandwidth 2M >/dev/null
  root_on_node n1 rm -rf /mnt/local/lockstep
  root_on_node n2 rm -rf /mnt/local/lockstep
}
says() { job_output "$1" | grep -q "$2"; }

# ended JOB WORDS: Slurm has told the job's output that it ends, and why. Then the source is fast again, and no program
# starts.
ended() {
  assert_within 60 says "$1" "CANCELLED AT .*$2"
  cluster meter --bandwidth 0 >/dev/null
  # Slurm waits for srun, which may have ended (docs/contributors/facts.md).
  wait_until 20 sinfo_all_idle || fail "nodes are not free after 20 s: $(on_head sinfo -h -N -o '%N %T %E' | xargs)"
  assert_nothing_left
  assert_lacks "$(job_output "$1")" started
}

test_case "while the tasks wait, the helper runs on all CPUs of the step"
slow_source
cpus=$(on_node n1 nproc --all)
job=$(submit_there -w n1,n2 -N2 --ntasks-per-node="$cpus" --wrap "srun --cpu-bind=cores --stage=large echo started")
assert_within 20 staging_on n1
all_cpus() { [ "$(as_root sed -n 's/Cpus_allowed_list:\t//p' "/proc/$(staging_on n1 | tail -n 1)/status")" = "0-$((cpus - 1))" ]; }
assert_within 5 all_cpus

test_case "scancel of a step on two nodes"
slow_copy n1 n2
on_head scancel "$job"
ended "$job" ""
assert_equal "CANCELLED 0:15" "$(job_state "$job")"

test_case "scancel of a batch script"
slow_source
job=$(submit_there -w n1,n2 -N2 -n4 --stage=large --wrap "echo started")
slow_copy n1
on_head scancel "$job"
ended "$job" ""
assert_equal "CANCELLED 0:15" "$(job_state "$job")"

test_case "srun whose step is cancelled fails"
slow_source
on_head srun -w n1 -n1 --stage=$packs/large echo started >"$state/srun.out" 2>&1 &
srun=$!
slow_copy n1
on_head scancel --user=alice
refused() { grep -q "CANCELLED AT" "$state/srun.out"; }
assert_within 20 refused
cluster meter --bandwidth 0 >/dev/null
code=0
wait $srun || code=$?
assert_equal 143 "$code" "srun's exit code: $(cat "$state/srun.out")"
assert_lacks "$(cat "$state/srun.out")" started
assert_nothing_left

test_case "requeue of a batch script"
slow_source
job=$(submit_there -w n1,n2 -N2 -n2 --requeue --stage=large --wrap "echo started")
slow_copy n1
as_root scontrol requeue "$job"
ended "$job" "REQUEUE"
assert_contains "$(job_state "$job")" PENDING
on_head scancel "$job"

test_case "the time limit of a job whose step stages"
slow_source
job=$(submit_there -w n1,n2 -N2 -n2 --time=5 --wrap "srun --stage=large echo started")
slow_copy n1 n2
# Slurm looks at the limits every 30 s.
as_root scontrol update job "$job" EndTime=now+1
ended "$job" "DUE TO TIME LIMIT"
assert_equal TIMEOUT "$(job_state "$job" | cut -d' ' -f1)"

test_case "a step continues if slurmd is killed and restarted while its node stages"
slow_source
job=$(submit_there -w n1,n2 -N2 -n2 --wrap "srun --stage=large sh -c 'cat \$LOCKSTEP_DATA/large/*.tar | sha256sum'")
slow_copy n1 n2
cluster kill n2
cluster restart n2
cluster meter --bandwidth 0 >/dev/null
await_job "$job"
assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$(job_output "$job")"
assert_equal 2 "$(job_output "$job" | grep -c "^$(cat "$shared"/plugin_test/large/*.tar | sha256sum | cut -d' ' -f1)")" "$(job_output "$job")"
assert_all_idle
