#!/usr/bin/env bash
# lockstep-doctor on a healthy cluster and with each fault that it knows: the fault is made, found and mended.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

keep_configuration
as_root cp /etc/slurm/plugstack.conf /run/plugstack.kept
plugin=/mnt/lockstep/lib/lockstep/lockstep.so
restore_plugstack() { as_root cp /run/plugstack.kept /etc/slurm/plugstack.conf; }
mend() {
  restore_configuration
  restore_plugstack
  root_on_node n1 sh -c 'chmod 755 /mnt/local/lockstep; rmdir /run/lockstep/other; umount /run/small
    for f in /usr/lib/*/slurm-wlm/mpi_pmix_v*.so; do umount "$f"; done' 2>/dev/null
  # A second umount would remove the node's own /dev/shm.
  [ -z "${small_shm:-}" ] || root_on_node n1 umount /dev/shm
  [ -z "${blas:-}" ] || as_root ln -sf "$blas" "$alternative"
  [ -z "${exporter:-}" ] || root_on_node n3 kill -CONT "$exporter" 2>/dev/null
  cluster restart n4 >/dev/null
}
trap 'mend; cancel_all' EXIT

# finds LEVEL ID TEXT COMMAND...: the report has this finding, with a reason and a remedy, and the exit code fits.
finds() {
  local level=$1 id=$2 text=$3 code=0 node
  shift 3
  [ "$level" != error ] || code=1
  assert_exit "$code" "$@"
  node=$(grep -F ": $level: $id: " <<<"$output" | grep -F "$text" | head -n 1 | cut -d: -f1)
  [ -n "$node" ] || fail "no $level '$id' with '$text' in: $output"
  grep "^$node:" <<<"$output" | grep -A2 -F "$text" | grep -A1 ':   why: .' | grep ':   do:  .' >/dev/null ||
    fail "no reason or remedy after '$text' in: $output"
}
# What an ordinary user sees on n1, and what root sees there.
doctor() { on_node n1 lockstep-doctor "$@"; }
root_doctor() { root_on_node n1 lockstep-doctor "$@"; }
on_nodes() { on_head srun -Q -w n1,n2 -N2 "$@"; }

test_case "healthy nodes have one line each, in a step, in a job and without one"
assert_exit 0 on_head srun -Q -N4 lockstep-doctor
assert_equal "n1 n2 n3 n4" "$(sed -n 's/: healthy, [0-9]* checks$//p' <<<"$output" | sort | xargs)" "$output"
assert_equal 4 "$(wc -l <<<"$output")" "$output"
assert_exit 0 on_head srun -Q -w n1,n2 -N2 -n4 lockstep-doctor
assert_equal 2 "$(grep -c healthy <<<"$output")" "$output"
assert_exit 0 on_head sbatch -Q --wait -w n1 -o doctor.out --wrap lockstep-doctor
assert_contains "$(on_head cat doctor.out)" "n1: healthy, "
assert_exit 0 root_doctor
assert_exit 0 doctor --verbose
for id in configuration plugin helpers group folders cache exporter munge slurmctld pmix shm; do
  assert_contains "$output" "n1: ok: $id: "
done
assert_exit 0 on_nodes lockstep-doctor --verbose
assert_contains "$output" "n2: ok: binding: "

test_case "--json prints one object for each node, with the fixed keys"
assert_exit 0 on_nodes --output=doctor-%N.json lockstep-doctor --json
output=$(on_head cat doctor-n1.json doctor-n2.json)
python3 - "$output" <<'PYTHON' || fail "$output"
import json, sys
reports = [json.loads(line) for line in sys.argv[1].splitlines()]
assert [report["node"] for report in reports] == ["n1", "n2"]
for report in reports:
    assert report["findings"]
    for finding in report["findings"]:
        assert set(finding) == {"id", "level", "what", "why", "do"} and finding["level"] == "ok", finding
PYTHON
assert_exit 2 doctor --nonsense

test_case "lockstep.conf has a mistake"
configure "cahe = /x"
finds error configuration "unknown key 'cahe'" doctor
restore_configuration

test_case "plugstack.conf lacks the line, or names a file that is missing, old, for another Slurm or damaged"
plugstack() { echo "$*" | as_root tee /etc/slurm/plugstack.conf >/dev/null; }
plugstack "# nothing"
finds warning plugin "has no line for lockstep.so" doctor
plugstack "optional /nonexistent/lockstep.so"
finds error plugin "No such file or directory" doctor
root_on_node n1 mkdir -p /run/other
plugstack "optional /run/other/lockstep.so"
edited() { root_on_node n1 sh -c "sed -E 's/$1/' $plugin >/run/other/lockstep.so"; }
edited 'lockstep\.so version [0-9]/lockstep.so version 9'
finds error plugin "/run/other/lockstep.so has version 9." doctor
edited '(lockstep\.so version [0-9.]+) 0x[0-9a-f]{4}/\1 0x0b08'
finds error plugin "is built for Slurm 11.08, and this is Slurm " doctor
root_on_node n1 sh -c "grep -aoE 'lockstep\.so version [0-9.]+ 0x[0-9a-f]+' $plugin >/run/other/lockstep.so"
finds error plugin "srun does not show the option --stage=" doctor
restore_plugstack
configure "prefix = ls-"
assert_exit 0 doctor
restore_configuration

test_case "the helpers are missing, or of another version"
configure "helpers = /nonexistent"
finds error helpers "cannot run /nonexistent/lockstep-stage" doctor
root_on_node n1 sh -c 'for h in stage pin; do printf "#!/bin/sh\necho lockstep-$h 0.0.1\n" >/run/other/lockstep-$h; chmod 755 /run/other/lockstep-$h; done'
configure "helpers = /run/other"
finds error helpers "lockstep-stage 0.0.1" doctor
restore_configuration

test_case "the exporter's group is missing"
configure "group = nosuch"
finds warning group "there is no group 'nosuch'" doctor
restore_configuration

test_case "a folder is open to others, belongs to a user, is a link, or is not in memory"
root_on_node n1 chmod 777 /mnt/local/lockstep
finds error folders "its mode is 0777" doctor
root_on_node n1 chmod 755 /mnt/local/lockstep
root_on_node n1 chown alice /mnt/local/lockstep
finds error folders "it belongs to user 6001" doctor
root_on_node n1 chown root: /mnt/local/lockstep
root_on_node n1 ln -sfn /mnt/local/lockstep /run/other/link
configure "cache = /run/other/link"
finds error folders "it is a link" doctor
configure "records = /mnt/local/records"
finds warning folders "not in memory" doctor
configure "ram = 1G"
finds warning folders "ram_cache /dev/shm/lockstep does not exist" doctor
configure "shared = /mnt/local/lockstep/shared"
finds warning folders "shared /mnt/local/lockstep/shared does not exist" doctor
restore_configuration

test_case "the cache is not set, not mounted, too small, full, in memory or not on a local disk"
echo "helpers = /mnt/lockstep/bin" | as_root tee /etc/lockstep/lockstep.conf >/dev/null
finds warning cache "'cache' is not set" doctor
configure "cache = /absent/lockstep"
finds error cache "/absent/lockstep does not exist, and neither does /absent" doctor
configure "total = 9000T"
finds warning cache "'total' is 8.79 PiB" doctor
root_on_node n1 sh -c 'mkdir -p /run/small && mount -t tmpfs -o mode=755,size=1m tmpfs /run/small && head -c 1000000 /dev/zero >/run/small/data'
configure "cache = /run/small"
finds warning cache "the cache /run/small is on tmpfs" doctor
finds warning cache "free" doctor
if root_on_node n1 grep -q ' /mnt/shared fuse' /proc/mounts; then
  root_on_node n1 mkdir -p /mnt/shared/cache
  configure "cache = /mnt/shared/cache"
  finds warning cache "the cache /mnt/shared/cache is on fuse" doctor
fi
restore_configuration

test_case "a login node needs no exporter"
assert_contains "$(on_head lockstep-doctor --verbose)" "head: ok: exporter: slurm.conf knows no node of this name"

test_case "no exporter runs, or Prometheus does not get its metrics"
root_on_node n1 mkdir -p /run/lockstep/other
configure "records = /run/lockstep/other"
finds warning exporter "no lockstep-exporter runs" doctor
# A user who may neither list the records nor connect does not know.
root_on_node n1 chmod 751 /run/lockstep/other
output=$(root_on_node n1 unshare --net setpriv --reuid=6001 --regid=6001 --clear-groups lockstep-doctor --verbose) || true
assert_contains "$output" "n1: ok: exporter: not known whether lockstep-exporter runs"
restore_configuration
finds warning prometheus "no answer from http://head:1" doctor --prometheus http://head:1
if command -v prometheus >/dev/null; then
  has_target() { doctor --prometheus http://head:9090 --verbose | grep -q 'ok: prometheus: '; }
  assert_within 20 has_target
  finds warning prometheus "does not have this node as a target" on_head lockstep-doctor --prometheus http://head:9090
  exporter=$(root_on_node n3 ss -ltnpH 'sport = :9753' | sed -n 's/.*pid=\([0-9]*\),.*/\1/p')
  root_on_node n3 kill -STOP "$exporter"
  silent() { on_node n3 lockstep-doctor --prometheus http://head:9090 | grep -q "warning: prometheus: .* gets no answer from this node's"; }
  assert_within 20 silent
  root_on_node n3 kill -CONT "$exporter"
fi

test_case "munged does not run, or has another key than slurmctld's"
on_n4() { root_on_node n4 lockstep-doctor; }
munged_gone() { ! root_on_node n4 sh -c 'munge -n | unmunge'; }
root_on_node n4 sh -c 'kill -9 $(cat /run/munge/munged.pid)'
assert_within 10 munged_gone
finds error munge "munge does not work" on_n4
root_on_node n4 sh -c 'umask 077; head -c 128 /dev/urandom >/run/munge/other.key
  munged --force --key-file=/run/munge/other.key --pid-file=/run/munge/munged.pid --seed-file=/run/munge/other.seed --log-file=/run/munge/other.log'
assert_within 10 root_on_node n4 sh -c 'munge -n | unmunge'
finds error slurmctld "slurmctld does not answer" on_n4
assert_lacks "$output" "error: munge: "
root_on_node n4 sh -c 'kill -9 $(cat /run/munge/munged.pid)'
cluster restart n4 >/dev/null || fail "n4 did not come back"
assert_all_idle 60

test_case "srun starts tasks without PMIx, or does not have it"
finds warning pmix "without PMIx" on_head srun -Q -w n1 --mpi=none lockstep-doctor
assert_exit 0 on_head srun -Q -w n1 --mpi=none env TORCHELASTIC_RUN_ID=1 lockstep-doctor --verbose
assert_lacks "$output" ": pmix: "
root_on_node n1 sh -c 'for f in /usr/lib/*/slurm-wlm/mpi_pmix_v*.so; do mount --bind /dev/null "$f"; done'
finds warning pmix "srun --mpi=list does not show pmix" root_doctor
finds error pmix "srun --mpi=list does not show pmix" root_on_node n1 env SLURM_STEP_TASKS_PER_NODE=1 lockstep-doctor
root_on_node n1 sh -c 'for f in /usr/lib/*/slurm-wlm/mpi_pmix_v*.so; do umount "$f"; done'

test_case "/dev/shm is small, or not open to all"
root_on_node n1 mount -t tmpfs -o size=1m,mode=1777 tmpfs /dev/shm
small_shm=yes
finds warning shm "/dev/shm has 1.00 MiB of 1.00 MiB free" doctor
root_on_node n1 chmod 755 /dev/shm
finds error shm "/dev/shm must exist with mode 1777" doctor
root_on_node n1 umount /dev/shm
small_shm=

test_case "a program is missing, or does not find its libraries"
finds error program "/no/such/program does not exist" doctor --program /no/such/program
sed 's/libc\.so\.6/libd.so.6/g' /bin/true >"$shared/broken_program"
chmod 755 "$shared/broken_program"
finds error program "/mnt/shared/broken_program does not find libd.so.6" doctor --program /mnt/shared/broken_program
rm "$shared/broken_program"

system_torch=$(ldconfig -p | sed -n 's/.*libtorch_cpu\.so.* => //p' | head -n 1)
if [ -n "$system_torch" ]; then
  test_case "LibTorch uses the reference BLAS"
  alternative=/etc/alternatives/libblas.so.3-$(uname -m)-linux-gnu
  blas=$(as_root readlink "$alternative")
  as_root ln -sf "/usr/lib/$(uname -m)-linux-gnu/blas/libblas.so.3" "$alternative"
  finds error blas "the reference BLAS" doctor
  as_root ln -sf "$blas" "$alternative"
  assert_exit 0 doctor
fi

test_case "tasks have one core of many, or more threads than CPUs"
finds warning binding "this task has one core" on_head salloc -Q -w n1 -n1 -c2 srun -n1 -c1 lockstep-doctor
finds error threads "OMP_NUM_THREADS=64 for 1 task" on_head env OMP_NUM_THREADS=64 srun -Q -w n1 lockstep-doctor

test_case "a node has no address in the network of staged data"
configure "peer_network = 203.0.113.0/24"
finds error peer_network "no running interface has an address in 203.0.113.0/24" on_node n1 lockstep-doctor
configure "peer_network = 203.0.113.0/24, 10.66.0.0/16"
assert_contains "$(on_node n1 lockstep-doctor --verbose)" "other nodes reach this one at 10.66.0.1"
restore_configuration

assert_all_idle
