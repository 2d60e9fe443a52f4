#!/usr/bin/env bash
# Pinning as the tasks see it.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

look='echo "$(hostname) $(sed -n "s/Cpus_allowed_list:\t//p" /proc/self/status) [$LOCKSTEP_CPUS] [$LOCKSTEP_WORKER_CPUS] [$LOCKSTEP_NUMA] [$OMP_NUM_THREADS] [$OMP_PLACES] [$OMP_PROC_BIND]"'
cpus=$(on_node n1 nproc --all)
[ "$cpus" -ge 2 ] || fail "needs nodes with two CPUs or more"

# column N TEXT
column() { awk -v n="$1" '{ print $n }' <<<"$2"; }

test_case "without the option nothing changes"
output=$(on_head srun -w n1,n2 -N2 -n4 --cpu-bind=none bash -c "$look" | sort)
assert_equal "[] [] [] [] [] []" "$(cut -d' ' -f3- <<<"$output" | sort -u)"
assert_equal "0-$((cpus - 1))" "$(column 2 "$output" | sort -u)"

test_case "two tasks on a node get separate CPUs, and variables that name them"
output=$(on_head srun -w n1,n2 -N2 -n4 --exclusive --cpu-bind=none --pin=auto bash -c "$look" | sort)
for node in n1 n2; do
  of_node=$(grep "^$node " <<<"$output")
  assert_equal 2 "$(column 2 "$of_node" | sort -u | wc -l)" "masks on $node: $of_node"
done
while read -r _ mask compute workers numa threads places bind; do
  assert_equal "[$mask]" "$compute" "LOCKSTEP_CPUS"
  assert_equal "[]" "$workers" "LOCKSTEP_WORKER_CPUS"
  assert_equal "[0]" "$numa" "LOCKSTEP_NUMA"
  assert_contains "$places" "{"
  assert_at_least 1 "${threads//[^0-9]/}" "OMP_NUM_THREADS"
  assert_equal "[close]" "$bind" "OMP_PROC_BIND"
done <<<"$output"

test_case "a task stays within the step's CPUs"
output=$(on_head srun -w n1 -N1 -n1 --cpus-per-task=1 --pin=auto bash -c "$look")
assert_equal 1 "$(column 2 "$output" | tr ',-' '\n\n' | wc -l)" "CPUs in '$output'"

test_case "--cpus-per-task is the limit where Slurm does not bind"
output=$(on_head salloc -w n1 -N1 -n1 --exclusive --cpus-per-task=1 srun --cpu-bind=none --pin=core bash -c "$look")
assert_equal 1 "$(column 3 "$output" | tr ',-' '\n\n' | wc -l)" "CPUs in '$output'"

test_case "one line says that srun has not taken over the job's --cpus-per-task, on releases of Slurm whose srun does not"
job=$(submit -w n1 -N1 -n1 -c2 --wrap "srun -n2 --pin=auto echo ran; srun --pin=auto echo alone")
await_job "$job"
output=$(job_output "$job")
if grep -q '^ran' <<<"$output"; then
  assert_equal 1 "$(grep -c 'CPUs in all, because srun has not taken over the job.s --cpus-per-task=2: give' <<<"$output")" "$output"
else # srun has asked for 2 tasks with 2 CPUs each
  assert_contains "$output" "More processors requested than permitted"
  assert_lacks "$output" "has not taken over"
fi
assert_contains "$output" alone

test_case "mem=interleave spreads the task's memory, mem=off names no NUMA nodes"
output=$(on_head srun -w n1 -n1 --pin=auto,mem=interleave sh -c 'grep -c " interleave:0" /proc/self/numa_maps')
assert_at_least 1 "$output" "mappings that are interleaved"
output=$(on_head srun -w n1 -n1 --pin=auto sh -c 'grep -c " interleave:0" /proc/self/numa_maps; echo "[$LOCKSTEP_NUMA]"' | xargs)
assert_equal "0 [0]" "$output"
output=$(on_head srun -w n1 -n1 --pin=auto,mem=off sh -c 'echo "[$LOCKSTEP_NUMA]"')
assert_equal "[]" "$output"

test_case "worker CPUs are in the mask but not among the compute CPUs"
output=$(on_head srun -w n1 -N1 -n1 --cpus-per-task="$cpus" --pin=auto,workers=1 bash -c "$look")
assert_equal "0-$((cpus - 1))" "$(column 2 "$output")" "the mask"
[ "$(column 3 "$output")" != "$(column 4 "$output")" ] || fail "the same CPUs for both: $output"
assert_lacks "$(column 4 "$output")" "[]"

test_case "the user's own OpenMP settings stay"
output=$(cluster exec -- env OMP_NUM_THREADS=7 OMP_PROC_BIND=spread srun -n1 --pin=auto bash -c "$look")
assert_contains "$output" "[7]"
assert_contains "$output" "[spread]"

test_case "an inner --pin=off removes the OpenMP settings of an outer pinned task, but not the user's"
output=$(on_head srun -w n1 -N1 -n1 --pin=auto bash -c "OMP_PROC_BIND=spread srun --overlap -n1 --pin=off bash -c '$look'" 2>/dev/null)
assert_contains "$output" "[] [] [] [] [] [spread]"

test_case "a pinned job's batch script gets no OpenMP settings"
job=$(submit -w n1 -N1 -n2 --pin=auto <<SCRIPT
#!/bin/bash
echo "batch [\$OMP_NUM_THREADS] [\$LOCKSTEP_CPUS]"
srun bash -c '$look'
SCRIPT
)
await_job "$job"
assert_contains "$(job_output "$job")" "batch [] []"
assert_equal 2 "$(job_output "$job" | grep -c '^n1 .*close')" "$(job_output "$job")"

test_case "--pin=...,explain prints where each task runs, and why"
output=$(on_head srun -w n1 -N1 -n2 --pin=auto,explain true 2>&1)
assert_contains "$output" "lockstep: n1: pin: task  cpus"
assert_contains "$output" "NUMA node 0"

test_case "with --cpu-bind, --pin has no effect and says so; a binding that Slurm only passes on does not count"
no_effect="lockstep: --pin has no effect: --cpu-bind chooses the CPUs of this step's tasks"
unpinned() {
  assert_equal "$no_effect" "$(grep '^lockstep: ' <<<"$output")"
  assert_equal 2 "$(grep -c '^n[12] [0-9]* \[\] \[\] ' <<<"$output")" "tasks that Slurm bound: $output"
}
output=$(on_head srun -w n1,n2 -N2 -n2 --cpu-bind=map_cpu:0 --pin=auto bash -c "$look" 2>&1)
unpinned
output=$(cluster exec -- env PATH=/usr/bin:/bin SLURM_CPU_BIND=cores srun --export=NONE -w n1,n2 -N2 -n2 --pin=auto /bin/bash -c "PATH=/usr/bin:/bin; $look" 2>&1)
unpinned
for bind in verbose none; do
  output=$(on_head srun -w n1 -n1 --cpu-bind=$bind --pin=auto bash -c "$look; env | grep -c LOCKSTEP_CPU_BIND" 2>/dev/null)
  assert_lacks "$output" "[] [] []"
  assert_equal 0 "$(tail -n 1 <<<"$output")" "variables of the plugin that are left"
done
output=$(on_head srun -w n1 -n1 --cpu-bind=cores bash -c "srun --overlap --pin=auto bash -c '$look'" 2>&1)
assert_lacks "$output" "--pin has no effect"
assert_lacks "$(on_head srun -w n1 -n1 --cpu-bind=cores env)" LOCKSTEP
output=$(on_head srun -w n1 -n1 -c2 --cpu-bind=mask_cpu:0x3 bash -c "srun --overlap --cpu-bind=mask_cpu:0x1 --pin=auto bash -c '$look'" 2>&1)
assert_contains "$output" "$no_effect"
output=$(on_head srun -w n1 -n1 --hint=nomultithread --pin=auto bash -c "$look" 2>&1)
assert_lacks "$output" "--pin has no effect"
assert_lacks "$output" "[] [] []"

test_case "a lockstep-pin that hangs is killed, the tasks run, and one line says so"
# The packages also have the helpers of the plugin's own version.
pin=$(on_node n1 sh -c 'ls /usr/lib/lockstep/*/lockstep-pin 2>/dev/null || command -v lockstep-pin')
root_on_node n1 sh -c 'mkdir -p /run/fake && printf "#!/bin/sh\nsleep 1000\n" >/run/fake/pin && chmod 755 /run/fake/pin && mount --bind /run/fake/pin "$0"' "$pin"
trap 'root_on_node n1 umount "$pin"' EXIT
output=$(cluster exec -- timeout 60 srun -w n1 -n2 --pin=auto bash -c "$look" 2>&1)
root_on_node n1 umount "$pin"
assert_equal "lockstep: n1: tasks keep the CPUs that Slurm gave them: lockstep-pin did not end within 10 s and was killed" \
  "$(grep '^lockstep: ' <<<"$output")"
assert_equal 2 "$(grep -c '^n1 ' <<<"$output")" "tasks in '$output'"
assert_equal "" "$(as_root pgrep -f '^sleep 1000')" "what it had started"

test_case "if lockstep-pin cannot run, tasks keep the CPUs that Slurm gave them, and one line says so"
keep_configuration
as_root sh -c 'sed -i "s|^helpers.*|helpers = /nonexistent|" /etc/lockstep/lockstep.conf'
trap restore_configuration EXIT
output=$(on_head srun -w n1 -N1 -n2 --pin=auto bash -c "$look" 2>&1)
assert_equal 1 "$(grep -c '^lockstep: n1: tasks keep the CPUs that Slurm gave them: cannot run /nonexistent/lockstep-pin' <<<"$output")" "$output"
assert_equal 2 "$(grep -c '^n1 ' <<<"$output")" "tasks in '$output'"

assert_all_idle
