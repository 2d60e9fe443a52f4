#!/usr/bin/env bash
# The ways in which Slurm can confine jobs, as a job sees them.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
own_cluster --nodes 2 >/dev/null || fail "up failed"

again() {
  cluster down && cluster up --state "$state" --nodes 2 "$@" >/dev/null || fail "up $* failed"
}
# Prints the cgroup of a task and its number of CPUs.
group_of_task() { on_head srun -n1 -c1 grep -E 'freezer|^0:' /proc/self/cgroup | xargs; }

test_case "cgroup: a task is in its step's group and cannot leave its cores"
assert_contains "$(group_of_task)" "job_1/step_0"
assert_exit 1 on_head srun -n1 -c1 taskset -pc 0-$(($(nproc --all) - 1)) self
assert_equal 1 "$(on_head srun -n1 -c1 bash -c "taskset -pc 0-$(($(nproc --all) - 1)) \$\$ >/dev/null; nproc")"

test_case "contain: a job has an extern step on each node"
again --variant contain
assert_contains "$(on_head scontrol show config)" "Contain"
job=$(submit -N2 --wrap 'srun sleep 1000')
assert_within 20 root_on_node n2 pgrep -f 'slurmstepd: \[1.extern\]'
on_head scancel "$job"
assert_all_idle

test_case "tmpfs: a job has its own /tmp, on every node and every time"
again --variant tmpfs
for _ in 1 2 3; do
  assert_equal "n1 n2" "$(on_head srun -N2 bash -c 'touch /tmp/mine && hostname' | sort | xargs)"
done
assert_equal "" "$(on_node n1 ls /tmp)"
assert_all_idle

test_case "a cluster with more CPUs than the machine"
again --cpus $(($(nproc --all) * 4))
assert_equal $(($(nproc --all) * 4)) "$(on_head srun -N1 -n$(($(nproc --all) * 4)) hostname | wc -l)"
