#!/usr/bin/env bash
# Slurm with proctrack/linuxproc and task/affinity, which tracks processes by their parents and confines nothing: staging,
# also in the background, ends with its step, and tasks run next to their GPUs.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"
own_cluster --nodes 2 --variant affinity --gpus 2 --prefix "$prefix" >/dev/null || fail "up failed"

make_pack large 12 1000000
chmod 777 "$shared/plugin_test"

test_case "a job that ends before its data is staged ends at once and leaves no helper"
cluster meter --bandwidth 500K >/dev/null
begin=$SECONDS
output=$(on_head srun -w n1,n2 -N2 -n2 --stage-mode=background --stage=$packs/large sh -c 'readlink -f $LOCKSTEP_DATA/large/*.tar | head -n 1' 2>&1)
assert_at_most 8 $((SECONDS - begin)) "seconds"
assert_equal 2 "$(grep -c "^$packs/large/" <<<"$output")" "tasks that ran in '$output'"
assert_nothing_left

test_case "staging continues while one of several tasks runs"
rm -f "$shared"/plugin_test/{up,stop}
job=$(submit_there -w n1 -N1 -n2 --wrap 'srun --stage-mode=background --stage=large sh -c "[ \$SLURM_PROCID = 0 ] || { touch up; until [ -e stop ]; do sleep 0.1; done; }"')
assert_within 20 test -e "$shared/plugin_test/up"
one_task_left() { [ "$(as_root pgrep -fc '^/bin/sh -c \[ |^[^ ]*sh -c \[ ')" = 1 ]; }
assert_within 10 one_task_left
assert_within 1 staging_on n1
touch "$shared/plugin_test/stop"
await_job "$job" 10
assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$(job_output "$job")"
assert_nothing_left

test_case "scancel ends the step and its staging"
job=$(submit_there -w n1 -N1 -n1 --stage-mode=background --stage=large --wrap 'sleep 1000')
assert_within 20 staging_on n1
on_head scancel "$job"
wait_until 8 sinfo_all_idle || fail "nodes are not free 8 s after scancel: $(on_head sinfo -h -N -o '%N %T %E' | xargs)"
assert_nothing_left
cluster meter --bandwidth 0 >/dev/null

if [ "$(nproc --all)" -ge 2 ]; then
  test_case "each task runs next to the GPU that Slurm gave it"
  # Simulates a driver and a machine with GPU 0 next to CPU 1 and GPU 1 next to CPU 0.
  root_on_node n1 sh -c 'mount -t tmpfs tmpfs /proc/driver && cd /proc/driver && mkdir -p nvidia/gpus/0000:46:00.0 nvidia/gpus/0000:07:00.0 &&
    printf "Device Minor: \t 0\n" >nvidia/gpus/0000:46:00.0/information && printf "Device Minor: \t 1\n" >nvidia/gpus/0000:07:00.0/information'
  root_on_node n1 sh -c 'mkdir -p /run/gpus && cat >/run/gpus/machine.xml' <"$source_root/tests/cluster/two_gpus.xml"
  root_on_node n1 sh -c 'cp /mnt/lockstep/bin/lockstep-pin /run/gpus/real && printf "#!/bin/sh\nverb=\$1\nshift\nexec /run/gpus/real \$verb --topology /run/gpus/machine.xml \"\$@\"\n" >/run/gpus/lockstep-pin &&
    chmod -R a+rX /run/gpus && chmod 755 /run/gpus/lockstep-pin && mount --bind /run/gpus/lockstep-pin /mnt/lockstep/bin/lockstep-pin'
  look='echo "$SLURM_PROCID $CUDA_VISIBLE_DEVICES $LOCKSTEP_GPUS $LOCKSTEP_NUMA $(sed -n "s/Cpus_allowed_list:\t//p" /proc/self/status)"'
  output=$(on_head srun -w n1 -n2 --gpus-per-task=1 --gpu-bind=single:1 --cpu-bind=none --pin=auto bash -c "$look" | sort)
  assert_equal "0 0 0000:46:00.0 1 1
1 1 0000:07:00.0 0 0" "$output"
  output=$(on_head srun -w n1 -n2 --cpu-bind=none --pin=auto bash -c "$look" | sort)
  assert_equal "0   0 0
1   1 1" "$output" "without GPUs the tasks lie in turn"
fi
