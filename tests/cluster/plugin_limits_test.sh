#!/usr/bin/env bash
# Limits over the jobs of several users: the space that copies leave free, and the total to which gc evicts.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

for pack in first second; do make_pack $pack 4 1000000; done
chmod 777 "$shared/plugin_test"
rm -f "$shared"/plugin_test/{up,stop}
clear_caches
keep_configuration
trap 'touch "$shared/plugin_test/stop"; restore_configuration; cancel_all; clear_caches' EXIT
objects_of() { root_on_node n1 sh -c "ls /mnt/local/lockstep/$1/objects | wc -l"; }
drained() { on_head sinfo -h -N -o '%N %T %E' | grep -v -E ' (idle|mixed|allocated|completing) '; }

# refused_bob PACK: a step of bob's stages the pack and ends with one line; stores that line in $output.
refused_bob() {
  assert_exit 3 as_bob srun -w n1 -n1 --overlap --stage="$packs/$1" echo started
  assert_equal 1 "$(lines_of_ours "$output" | wc -l)" "lines of the plugin in '$output'"
  assert_lacks "$output" "started"
}

test_case "a job that would leave less than min_free ends with one line about the disk of the cache"
job=$(submit_there -w n1 -n1 --stage=first --wrap 'touch up; until [ -e stop ]; do sleep 0.1; done; cat $LOCKSTEP_DATA/first/*.tar | sha256sum')
assert_within 30 test -e "$shared/plugin_test/up"
configure "min_free = 9000T" "keep = 0"
refused_bob second
assert_contains "$output" "lockstep: n1: "
assert_contains "$output" "of it must stay free"
assert_equal "" "$(drained)" "nodes that are drained or down"

test_case "with --stage-on-error=source the second user's job reads from the source instead"
output=$(as_bob srun -w n1 -n1 --overlap --stage-on-error=source --stage=$packs/second sh -c 'cat $LOCKSTEP_DATA/second/*.tar | sha256sum' 2>&1)
assert_contains "$output" "$(cat "$shared"/plugin_test/second/*.tar | sha256sum)"
assert_contains "$output" "source"
touch "$shared/plugin_test/stop"
await_job "$job"
assert_contains "$(job_output "$job")" "$(cat "$shared"/plugin_test/first/*.tar | sha256sum)"

test_case "root's gc evicts a user's idle data; jobs of another user do not"
assert_equal 1 "$(objects_of 6001)" "objects of alice"
configure "keep = 0"
root_on_node n1 lockstep-stage gc --all --cache /mnt/local/lockstep --total 6M --reserve 5M --keep 0 >/dev/null || fail "gc failed"
assert_equal 0 "$(objects_of 6001)" "objects of alice"
output=$(as_bob srun -w n1 -n1 --stage=$packs/second echo started 2>&1)
assert_contains "$output" "started"

rm -f "$shared"/plugin_test/{up,stop}
assert_nothing_left
assert_all_idle
