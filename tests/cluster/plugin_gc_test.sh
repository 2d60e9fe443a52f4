#!/usr/bin/env bash
# The end of a job removes its folders and leases. Its data stays until `gc --all`, which root's timer runs beside running
# jobs, removes unused data.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack good 8 4000
make_pack large 4 1000000
chmod 777 "$shared/plugin_test"
clear_caches
trap 'touch "$shared/plugin_test/stop"; cancel_all' EXIT
rm -f "$shared"/plugin_test/{up,stop}
sum=$(cat "$shared"/plugin_test/large/*.tar | sha256sum | cut -d' ' -f1)
objects() { root_on_node n1 sh -c 'grep -ho "\"source\":\"[^\"]*\"" /mnt/local/lockstep/6001/objects/*/object.json 2>/dev/null' | sort | sed 's|.*/||; s|"||' | xargs; }
gc() { root_on_node n1 lockstep-stage gc --all --cache /mnt/local/lockstep "$@"; }

test_case "gc does nothing on a node where nothing was staged"
root_on_node n1 rm -rf /mnt/local/lockstep
output=$(gc 2>&1) || fail "gc failed: $output"
assert_contains "$output" "lockstep-stage: /mnt/local/lockstep does not exist: nothing has been staged on this node yet"

test_case "a job's folder and lease end with the job, its data stays"
on_head srun -w n1 -n1 --stage=$packs/good,$packs/large true 2>/dev/null
wait_until 10 nothing_left_on n1 || fail "left: $(left_on n1)"
assert_equal "good large" "$(objects)"

test_case "a job stages under any umask, and its user has access to all that it leaves"
closed() { root_on_node n1 sh -c 'find /mnt/local/lockstep/6001 /mnt/local/lockstep/6001/*/ -maxdepth 1 -type d ! -perm -0500; find /mnt/local/lockstep/6001/locks /mnt/local/lockstep/6001/leases -type f ! -perm -0600'; }
root_on_node n1 rm -rf /mnt/local/lockstep
output=$(on_head sh -c "umask 777; srun -w n1 -n1 --stage=$packs/good sh -c 'cat \$LOCKSTEP_DATA/good/*.tar | sha256sum'" 2>&1)
assert_contains "$output" "$(cat "$shared"/plugin_test/good/*.tar | sha256sum)"
assert_equal "" "$(closed)" "folders and locks that are closed to their owner"
wait_until 10 nothing_left_on n1 || fail "left: $(left_on n1)"
on_head srun -w n1 -n1 --stage=$packs/large true 2>/dev/null || fail "the next job cannot stage"

test_case "root's gc --all restores access to a store's folders, and removes a link in an object's place"
root_on_node n1 sh -c 'cd /mnt/local/lockstep/6001 && chmod 0 locks objects && cd / && mkdir -m 700 /run/of_root'
root_on_node n1 ln -s /run/of_root /mnt/local/lockstep/6001/objects/00000000000000000000000000000000
root_on_node n1 chown -h 6001 /mnt/local/lockstep/6001/objects/00000000000000000000000000000000
output=$(gc 2>&1) || fail "gc failed: $output"
assert_equal "good large" "$(objects)"
root_on_node n1 rmdir /run/of_root

test_case "gc --all removes nothing within the limits"
gc >/dev/null || fail "gc failed"
assert_equal "good large" "$(objects)"

test_case "over a quota gc --all removes all but the data of a running job"
job=$(submit_there -w n1 -n1 --stage=large --wrap 'touch up; until [ -e stop ]; do sleep 0.1; done; cat $LOCKSTEP_DATA/large/*.tar | sha256sum')
assert_within 30 test -e "$shared/plugin_test/up"
gc --keep 0 --quota 1K >/dev/null 2>&1
assert_equal "large" "$(objects)"

test_case "jobs stage and run while gc --all runs again and again"
(while [ ! -e "$shared/plugin_test/stop" ]; do gc --keep 0 --quota 1K >/dev/null 2>&1; done) &
collector=$!
for _ in 1 2 3 4 5; do
  output=$(on_head srun -w n1 -n1 --overlap --stage=$packs/good sh -c 'cat $LOCKSTEP_DATA/good/*.tar | sha256sum' 2>&1)
  assert_contains "$output" "$(cat "$shared"/plugin_test/good/*.tar | sha256sum)"
done
touch "$shared/plugin_test/stop"
wait $collector
await_job "$job"
assert_contains "$(job_output "$job")" "$sum"
assert_equal "COMPLETED 0:0" "$(job_state "$job")"

test_case "after a job ends, gc --all removes the job's data and the remains of killed processes"
root_on_node n1 sh -c 'cd /mnt/local/lockstep/6001 && mkdir -p objects/.removed-00000000000000000000000000000000/files && chown -R alice: objects/.removed-*'
gc --keep 0 --quota 1K >/dev/null || fail "gc failed"
assert_equal "" "$(objects)"
wait_until 10 nothing_left_on n1 || fail "left: $(left_on n1)"

test_case "the next job stages again"
output=$(on_head srun -w n1 -n1 --stage=$packs/large sh -c 'cat $LOCKSTEP_DATA/large/*.tar | sha256sum' 2>/dev/null)
assert_contains "$output" "$sum"
rm -f "$shared"/plugin_test/{up,stop}
assert_nothing_left
assert_all_idle
