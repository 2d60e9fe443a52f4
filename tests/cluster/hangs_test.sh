#!/usr/bin/env bash
# A job on two nodes whose ranks disagree, stop, die or lose the network ends soon and automatically. One line names the
# rank and what it did, and nothing is left.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
own_cluster --nodes 2 --cpus 2
on_head bash -c 'cat >failing_job && chmod +x failing_job' <"$build/bin/failing_job" || fail "no failing_job"

timeout_s=8 # longer than MPI's start on a busy machine
launch_s=10 # srun's start and end there

# [TIMEOUT=SECONDS] run_job HOW [RANK]: 4 ranks on n1 and n2; stores their output in $output, their seconds in $took, srun's exit code in $code.
run_job() {
  local begin=$SECONDS
  code=0
  output=$(on_head env LOCKSTEP_TIMEOUT="${TIMEOUT:-60}" OMP_NUM_THREADS=1 srun -N2 -n4 ./failing_job "$@" 2>&1) || code=$?
  took=$((SECONDS - begin))
}

verdicts() { grep -a '^lockstep: rank' <<<"$output"; }
no_ranks_on() { ! root_on_node "$1" pgrep -x failing_job; }

# Records and their folder stay for the exporter.
assert_nothing_left() {
  local node
  for node in n1 n2; do
    assert_within 2 no_ranks_on "$node"
    assert_equal "" "$(root_on_node "$node" find /dev/shm -type f ! -path '*/records/*' | xargs)" "shared memory on $node"
  done
}

# assert_ended SECONDS TEXT...: the job ended in time, with one line that contains all the texts.
assert_ended() {
  local seconds=$1 text
  shift
  [ "$code" != 0 ] || fail "exit code 0; output: $output"
  assert_at_most $((seconds + launch_s)) "$took" "seconds"
  assert_equal 1 "$(verdicts | wc -l)" "lines that say what is wrong ($output)"
  for text in "$@"; do assert_contains "$(verdicts)" "$text"; done
  assert_nothing_left
}

test_case "a job without a fault ends without a message"
run_job well
assert_equal 0 "$code" "$output"
assert_contains "$output" "lockstep: 4 ranks on 2 nodes"
assert_equal "" "$(verdicts)"
assert_nothing_left

# tests/integration/comm/failure_test.cpp has all ways in which ranks fail, on one machine.
test_case "a killed rank is named at once, also rank 0, which collects the reports"
for rank in "3 on n2" "0 on n1"; do
  run_job killed "${rank%% *}"
  assert_ended 3 "rank $rank is gone"
done

test_case "a stopped rank is named after the timeout"
TIMEOUT=$timeout_s run_job stopped
assert_ended $((timeout_s + 5)) "rank 3 on n2 does not answer"

test_case "different counts between nodes are reported"
run_job other-count 2
assert_ended 5 "all_reduce of bucket 7" "rank 2"

test_case "both sides of a cut-off node end independently"
log=$(mktemp)
on_head env LOCKSTEP_TIMEOUT=$timeout_s OMP_NUM_THREADS=1 srun -N2 -n4 ./failing_job runs >"$log" 2>&1 &
srun=$!
assert_within 30 grep -q '^running$' "$log"
root_on_node n2 ip link set eth0 down
assert_within $((timeout_s + 5 + launch_s)) no_ranks_on n1
assert_within 3 no_ranks_on n2 # it has had its time since the cut, too
root_on_node n2 ip link set eth0 up
wait $srun && fail "exit code 0; output: $(cat "$log")"
output=$(cat "$log")
rm "$log"
assert_equal 1 "$(verdicts | wc -l)" "lines that say what is wrong ($output)"
assert_contains "$(verdicts)" "ranks 2-3 on n2 do not answer"
assert_nothing_left
