#!/usr/bin/env bash
# Clusters with different names are separate, though their nodes and jobs have the same names and numbers.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
own_cluster --nodes 1 >/dev/null || fail "up failed"
first=$cluster_name
first_state=$state
trap 'for cluster_name in "$first" "$second"; do cluster down; done; rm -rf "$first_state" "$second_state"' EXIT
second=$first-b
second_state=$(mktemp -d "/var/tmp/lockstep-$second.XXXXXX")

test_case "two clusters run jobs of the same number at the same time"
cluster_name=$second
cluster up --state "$second_state" --nodes 1 >/dev/null || fail "up failed"
for cluster_name in "$first" "$second"; do
  assert_equal 1 "$(submit --wrap "echo $cluster_name >~/mark; srun sleep 1000")"
  assert_within 20 on_head test -s mark
done

test_case "if one cluster goes down, the job of the other cluster continues"
cluster_name=$second
assert_exit 0 cluster down
cluster_name=$first
assert_equal "RUNNING 0:0" "$(job_state 1)"
assert_equal "$first" "$(on_head cat mark)"
on_head scancel 1
assert_all_idle 20
