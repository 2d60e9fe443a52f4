#!/usr/bin/env bash
# scancel during staging: the nodes are free within seconds, and nothing is left on them.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack large 12 4000000
cluster meter --bandwidth 2M >/dev/null
trap 'cluster meter --bandwidth 0 >/dev/null' EXIT

copying_on() { root_on_node "$1" sh -c 'ls /mnt/local/lockstep/*/objects/.incoming-*/files/*.tar'; }

# cancelled JOB NODE...: cancels the job when these nodes copy, and checks that nothing is left.
cancelled() {
  local job=$1 node
  shift
  for node in "$@"; do
    assert_within 20 staging_on "$node"
    assert_within 20 copying_on "$node"
  done
  on_head scancel "$job"
  wait_until 5 sinfo_all_idle || fail "nodes are not free 5 s after scancel: $(on_head sinfo -h -N -o '%N %T %E' | xargs)"
  assert_equal "CANCELLED 0:15" "$(job_state "$job")"
  assert_nothing_left
  assert_lacks "$(job_output "$job")" started
}

test_case "while the tasks wait, the helper runs on all CPUs of the step"
clear_caches
cpus=$(on_node n1 nproc --all)
job=$(submit_there -w n1,n2 -N2 --ntasks-per-node="$cpus" --wrap "srun --cpu-bind=cores --stage=large echo started")
assert_within 20 staging_on n1
all_cpus() { [ "$(as_root sed -n 's/Cpus_allowed_list:\t//p' "/proc/$(staging_on n1 | tail -n 1)/status")" = "0-$((cpus - 1))" ]; }
assert_within 5 all_cpus

test_case "scancel of a step on two nodes"
cancelled "$job" n1 n2

test_case "scancel of a batch script"
clear_caches
cancelled "$(submit_there -w n1,n2 -N2 -n4 --stage=large --wrap "echo started")" n1

test_case "the next job stages normally"
cluster meter --bandwidth 0 >/dev/null
output=$(on_head srun -w n1,n2 -N2 -n2 --stage=$packs/large sh -c 'cat $LOCKSTEP_DATA/large/*.tar | sha256sum' 2>/dev/null | sort -u)
assert_equal "$(cat "$shared"/plugin_test/large/*.tar | sha256sum)" "$output"
assert_all_idle
