#!/usr/bin/env bash
# A step with a node that cannot stage ends with one line, or, with --stage-on-error=source, reads from the source on that
# node.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack good 8 4000
make_pack large 4 1000000
clear_caches
sum=$(cat "$shared"/plugin_test/large/*.tar | sha256sum)
keep_configuration
full_disk_off() { root_on_node n2 sh -c 'umount /mnt/local/lockstep 2>/dev/null'; }
trap 'restore_configuration; cancel_all; full_disk_off' EXIT
read_all='echo "$(hostname) $(readlink $LOCKSTEP_DATA/large) $(cat $LOCKSTEP_DATA/large/*.tar | sha256sum)"'

# Puts the store of n2 on a disk of 1 MB.
root_on_node n2 mkdir -p /mnt/local/lockstep
root_on_node n2 mount -t tmpfs -o size=1M,mode=755 tmpfs /mnt/local/lockstep

test_case "a full disk on one node ends the step on all nodes, and one line names the node"
assert_exit 3 on_head srun -w n1,n2 -N2 -n2 --stage=$packs/large echo started
assert_lacks "$output" "started"
assert_equal 1 "$(lines_of_ours "$output" | grep -vc ': staged ')" "$output"
assert_contains "$output" "lockstep: n2: "
assert_contains "$output" "$packs/large"

test_case "with --stage-on-error=source the node with the full disk reads from the source, the other node its copy"
output=$(on_head srun -w n1,n2 -N2 -n2 --stage-on-error=source --stage=$packs/large bash -c "$read_all" 2>&1)
assert_contains "$output" "n1  $sum"
assert_contains "$output" "$sum"
assert_equal 2 "$(grep -c -F "$sum" <<<"$output")" "tasks that read all: $output"
assert_equal 1 "$(grep -c '^lockstep: n2: .*reads from the source' <<<"$output")" "$output"
assert_equal 0 "$(grep -c '^lockstep: n1: .*reads from the source' <<<"$output")" "$output"
assert_contains "$(root_on_node n1 ls /mnt/local/lockstep/6001/objects)" ""

test_case "with --stage-on-error=source a batch script on the node with the full disk reads from the source"
job=$(submit_there -w n2 -N1 -n1 --stage-on-error=source --stage=large --wrap "$read_all")
await_job "$job"
assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$(job_output "$job")"
assert_equal 1 "$(job_output "$job" | grep -c -F "$sum")" "$(job_output "$job")"
full_disk_off
clear_caches

test_case "a quota that is too small is reported in one line, with the missing size"
configure "quota = 2M"
assert_exit 3 on_head srun -w n1,n2 -N2 -n2 --stage=$packs/large echo started
assert_equal 1 "$(lines_of_ours "$output" | grep -vc ': staged ')" "$output"
assert_contains "$output" "lockstep: n1, n2: "
assert_contains "$output" "quota"

test_case "within the quota unused data is evicted, data of a running job is not"
configure "quota = 6M" "keep = 0"
rm -f "$shared/plugin_test/stop"
make_pack second 4 1000000
chmod 777 "$shared/plugin_test"
job=$(submit_there -w n1 -n1 --stage=large --wrap 'touch up; until [ -e stop ]; do sleep 0.1; done; cat $LOCKSTEP_DATA/large/*.tar | sha256sum')
assert_within 30 test -e "$shared/plugin_test/up"
assert_exit 3 on_head srun -w n1 -n1 --overlap --stage=$packs/second echo started
assert_contains "$output" "in use by running jobs"
touch "$shared/plugin_test/stop"
await_job "$job"
assert_contains "$(job_output "$job")" "$sum"
rm -f "$shared"/plugin_test/{up,stop}
output=$(on_head srun -w n1 -n1 --stage=$packs/second sh -c 'ls $LOCKSTEP_DATA' 2>/dev/null)
assert_equal second "$output"
assert_equal 1 "$(root_on_node n1 sh -c 'ls /mnt/local/lockstep/6001/objects | wc -l')" "objects left within the quota"

test_case "the RAM tier has its own store and limit, and is cleaned up as the disk is"
configure "ram = 6M"
output=$(on_head srun -w n1 -n1 --stage-tier=ram --stage=$packs/large sh -c 'stat -f -c %T $LOCKSTEP_DATA; cat $LOCKSTEP_DATA/large/*.tar | sha256sum' 2>/dev/null | xargs)
assert_equal "tmpfs $(xargs <<<"$sum")" "$output"
assert_exit 3 on_head srun -w n1 -n1 --stage-tier=ram --stage=$packs/large,$packs/second echo started
assert_contains "$output" "quota"
assert_equal "" "$(root_on_node n1 sh -c 'ls /dev/shm/lockstep/6001/jobs /dev/shm/lockstep/6001/leases/held | grep -v :' | xargs)" "left in RAM"
root_on_node n1 rm -rf /dev/shm/lockstep

test_case "another user's store is refused and stays unchanged"
clear_caches
root_on_node n1 sh -c 'mkdir -p /mnt/local/lockstep/6001 && chown nobody /mnt/local/lockstep/6001'
assert_exit 3 on_head srun -w n1 --stage=$packs/good echo started
assert_contains "$output" "/mnt/local/lockstep/6001 belongs to user"
assert_equal "nobody" "$(root_on_node n1 stat -c %U /mnt/local/lockstep/6001)"

test_case "root follows no links that a user plants in the store"
for at in 6001 6001/jobs 6001/leases 6001/objects 6001/locks; do
  clear_caches
  root_on_node n1 sh -c "mkdir -p /mnt/local/lockstep/6001 /mnt/local/elsewhere && chown alice /mnt/local/lockstep/6001 && rmdir --ignore-fail-on-non-empty /mnt/local/lockstep/$at 2>/dev/null; ln -s /mnt/local/elsewhere /mnt/local/lockstep/$at; chown -h alice /mnt/local/lockstep/$at; chown root /mnt/local/elsewhere"
  output=$(on_head srun -w n1 --stage=$packs/good echo started 2>&1)
  assert_lacks "$output" "started"
  assert_equal 1 "$(lines_of_ours "$output" | wc -l)" "$at: $output"
  assert_equal "root " "$(root_on_node n1 sh -c 'stat -c %U /mnt/local/elsewhere; ls /mnt/local/elsewhere' | xargs) " "the target of the link at $at"
done
root_on_node n1 rmdir /mnt/local/elsewhere
clear_caches

assert_all_idle
