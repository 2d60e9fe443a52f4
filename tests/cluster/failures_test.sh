#!/usr/bin/env bash
# Failures are reported and cleaned up.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/traces.sh
source "$(dirname "$0")/traces.sh"
picture=$(machine_picture)

# As own_cluster, for a cluster that does not start.
cluster_name=f$$
state=$(mktemp -d "/var/tmp/lockstep-$cluster_name.XXXXXX")
trap 'cluster down; rm -rf "$state"' EXIT

test_case "a controller that does not start is named, with the last lines of its log"
assert_exit 1 cluster up --state "$state" --slurm-conf-extra "NoSuchOption=1"
assert_contains "$output" "slurmctld on head ended"
assert_contains "$output" "NoSuchOption"
assert_no_traces

test_case "a node's daemon that does not start is named"
assert_exit 1 cluster up --state "$state" --slurm-conf-extra "SlurmdSpoolDir=/proc/nowhere"
assert_contains "$output" "slurmd on n"
assert_contains "$output" "/proc/nowhere"
assert_no_traces

test_case "nodes that do not start are named after the timeout"
assert_exit 1 cluster up --state "$state" --timeout 3 --slurm-conf-extra "DownNodes=n1 State=DRAIN"
assert_contains "$output" "not all nodes became idle within 3 s: n1 drained n2 idle"
assert_no_traces

test_case "a plugin that Slurm does not load is named"
mkdir -p "$state.prefix/lib/lockstep" && echo "not a plugin" >"$state.prefix/lib/lockstep/lockstep.so"
assert_exit 1 cluster up --state "$state" --prefix "$state.prefix"
rm -r "$state.prefix"
assert_contains "$output" "srun does not load the plugin"
assert_contains "$output" "optional /mnt/lockstep/lib/lockstep/lockstep.so"
assert_no_traces

test_case "wrong options are named before anything starts"
for wrong in "--nodes 0" "--nodes x" "--cpus none" "--variant docker" "--prefix /no/such/folder" "--no-such-option" \
  "--metered-fs /no/such/program" "--name A/b"; do
  # shellcheck disable=SC2086  # an option and its value
  assert_exit 2 cluster up $wrong
  option=${wrong%% *}
  assert_contains "$output" "$option"
done
assert_exit 2 "$source_root/tests/cluster/embedded/cluster" fly
assert_no_traces

test_case "an interrupted up leaves nothing behind"
cluster up --state "$state" --nodes 4 >/dev/null 2>&1 &
assert_within 10 test -e "$state/live/supervisor"
kill -TERM "$(pgrep -P $! -f 'cluster up' || echo $!)"
wait $!
assert_no_traces
