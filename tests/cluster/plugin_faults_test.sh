#!/usr/bin/env bash
# Nodes, daemons and helpers that end during staging: the step ends or continues, the nodes become free, nothing is left,
# and the next call works.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"
own_cluster --nodes 4 --prefix "$prefix" >/dev/null || fail "up failed"

make_pack large 12 1000000
chmod 777 "$shared/plugin_test"
sum=$(cat "$shared"/plugin_test/large/*.tar | sha256sum | cut -d' ' -f1)
slow() { cluster meter --bandwidth 1M >/dev/null; }
fast() { cluster meter --bandwidth 0 >/dev/null; }
# The next call stages all data on these nodes.
works_on() {
  output=$(on_head srun -w "$1" -N"$2" -n"$2" --stage=$packs/large sh -c 'cat $LOCKSTEP_DATA/large/*.tar | sha256sum' 2>/dev/null)
  assert_equal "$2" "$(grep -c "^$sum" <<<"$output")" "nodes with all the data in '$output'"
  wait_until 10 no_helpers || fail "helpers that still run: $(helpers_running)"
}

test_case "the step continues if slurmd is killed and restarted while its node stages"
slow
job=$(submit_there -w n1,n2 -N2 -n2 --wrap "srun --stage=large sh -c 'cat \$LOCKSTEP_DATA/large/*.tar | sha256sum'")
for node in n1 n2; do assert_within 20 copying_on $node; done
cluster kill n2
cluster restart n2
fast
await_job "$job"
assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$(job_output "$job")"
assert_equal 2 "$(job_output "$job" | grep -c "^$sum")" "$(job_output "$job")"
works_on n1,n2 2

test_case "if a node is lost before the rendezvous, the others end with one line that names it"
for node in n1 n2 n3; do root_on_node $node rm -rf /mnt/local/lockstep; done
as_root sh -c 'cp /etc/lockstep/lockstep.conf /run/conf.kept; echo "wait = 5" >>/etc/lockstep/lockstep.conf'
# The helper on n3 never reaches the rendezvous.
root_on_node n3 sh -c 'mkdir -p /run/slow && printf "#!/bin/sh\nexec sleep 1000\n" >/run/slow/stage && chmod 755 /run/slow/stage && mount --bind /run/slow/stage /mnt/lockstep/bin/lockstep-stage'
on_head srun -w n1,n2,n3 -N3 -n3 --stage=$packs/large sh -c 'echo started' >"$state/lost.out" 2>&1 &
step=$!
stuck() { as_root pgrep -f '^sleep 1000'; }
assert_within 20 stuck
cluster kill n3 --all
named() { grep '^lockstep: n3: did not reach srun within 5 s' "$state/lost.out"; }
assert_within 20 named
assert_equal 1 "$(grep -c '^lockstep: ' <(grep -v ': staged ' "$state/lost.out"))" "$(cat "$state/lost.out")"
only_srun() { [ -z "$(as_root pgrep -f '[l]ockstep-stage step$')" ]; }
assert_within 10 only_srun
root_on_node n3 umount /mnt/lockstep/bin/lockstep-stage
cluster restart n3
wait_ended() { ! kill -0 $step 2>/dev/null; }
# Slurm is slow to tell srun that the node has lost the step.
on_head scancel -u alice
assert_within 30 wait_ended
assert_lacks "$(cat "$state/lost.out")" "started"
as_root cp /run/conf.kept /etc/lockstep/lockstep.conf
assert_all_idle 60
works_on n1,n2,n3 3

test_case "after a power failure leases are stale, an interrupted copy continues, and no corrupt data is served"
root_on_node n1 rm -rf /mnt/local/lockstep/6001/objects
slow
job=$(submit_there -w n1 -N1 -n1 --stage=large --wrap 'echo started')
assert_within 20 copying_on n1
long=$(submit_there -w n2 -N1 -n1 --stage=large --wrap 'sleep 1000')
lease_there() { root_on_node n2 test -e "/mnt/local/lockstep/6001/leases/held/$long.batch"; }
assert_within 20 lease_there
cluster down --keep-disks
cluster up --state "$state" --nodes 4 --prefix "$prefix" >/dev/null || fail "up failed"
fast
lease_there || fail "the lease's name did not survive: nothing is tested"
root_on_node n2 flock -xn "/mnt/local/lockstep/6001/leases/held/$long.batch" true || fail "the lease is still held"
works_on n1,n2 2
assert_all_idle
