#!/usr/bin/env bash
# The plugin inside Slurm: each callback fails in each context, another plugin in the stack has the same option, the plugin
# is built for another Slurm, and 200 short steps run at once. Exit codes are right, and no node is drained.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"
own_cluster --nodes 2 --prefix "$prefix" >/dev/null || fail "up failed"

make_pack good 4 4000
chmod 777 "$shared/plugin_test"
plugins=$shared/plugins
mkdir -p "$plugins"
cp "$build"/lib/{lockstep_failing,neighbour}.so "$prefix/lib/lockstep/lockstep.so" "$plugins/"
there=/mnt/shared/plugins
conf=conf=/etc/lockstep/lockstep.conf
# stack LINE...: the lines of plugstack.conf, which each command and step reads again.
stack() { printf '%s\n' "$@" | as_root tee /etc/slurm/plugstack.conf >/dev/null; }

# The task proves that it has its data.
task='test -e $LOCKSTEP_DATA/good && echo "has its data"'
# Runs the step: its exit code goes to $code, its output to $output.
step() {
  code=0
  output=$("$@" 2>&1) || code=$?
}
staged_step() { step on_head srun -w n1 -n1 --stage=$packs/good sh -c "$task"; }

# ends CODE [LINE]: the step ended with the code; if it is not 0, no task ran, and the plugin printed LINE alone.
ends() {
  assert_equal "$1" "$code" "exit code, with output '$output'"
  if [ "$1" = 0 ]; then
    assert_contains "$output" "has its data"
  else
    assert_lacks "$output" "has its data"
    assert_equal "${2:-}" "$(grep '^lockstep: ' <<<"$output")"
  fi
}

refused="failed: made to fail; the task ends because its data cannot be staged"
# On nodes, Slurm treats a failure of a plugin that plugstack.conf requires differently.
for at in allocator:init allocator:init_post_opt allocator:exit local:init local:init_post_opt local:local_user_init \
  local:exit remote:init remote:init_post_opt remote:user_init remote:task_init remote:task_exit remote:exit \
  slurmd:init job_script:init job_script:job_epilog required-remote:init required-remote:init_post_opt \
  required-remote:user_init required-remote:task_init required-remote:task_exit required-remote:exit; do
  word=optional
  [[ $at != required-* ]] || word=required
  at=${at#required-}
  test_case "$word plugin whose $at fails"
  stack "$word $there/lockstep_failing.so $conf fail=$at"
  [ $at != slurmd:init ] || { cluster kill n1 && cluster restart n1; }
  callback=${at#*:}

  # Jobs that do not use the plugin.
  job=$(submit -w n1 -n1 --wrap 'srun echo ran') || fail "sbatch without options"
  await_job "$job"
  assert_equal "COMPLETED 0:0 ran" "$(job_state "$job") $(job_output "$job" | grep -x ran)"

  staged_step
  case $at in
    local:init) ends 255 ;; # the option is then unknown to srun
    local:init_post_opt) ends 1 "lockstep: init_post_opt failed: made to fail" ;;
    remote:init | remote:init_post_opt | remote:user_init | remote:task_init)
      ends 3 "lockstep: n1: $callback $refused"
      ;;
    *) ends 0 ;;
  esac

  # A batch script, whose step has the option from its environment.
  code=0
  submitted=$(submit_there -w n1 -n1 --stage=good --wrap "$task; srun sh -c '$task'" 2>&1) || code=$?
  case $at in
    allocator:init) assert_equal 255 $code "$submitted" ;;  # the option is then unknown to sbatch
    allocator:init_post_opt)
      assert_equal "1 lockstep: init_post_opt failed: made to fail" "$code $submitted"
      ;;
    *)
      job=$(grep -xE '[0-9]+' <<<"$submitted") || fail "not submitted: $submitted"
      await_job "$job"
      output=$(job_output "$job")
      case $at in
        local:init | local:init_post_opt)
          assert_equal "FAILED 1:0" "$(job_state "$job")" "$output"
          assert_equal 1 "$(grep -c 'has its data' <<<"$output")" "$output"
          assert_contains "$output" "lockstep: $callback failed: made to fail"
          ;;
        remote:init | remote:init_post_opt | remote:user_init | remote:task_init)
          assert_equal "FAILED 3:0" "$(job_state "$job")" "$output"
          assert_contains "$output" "lockstep: n1: $callback $refused"
          assert_lacks "$output" "has its data"
          ;;
        *)
          assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$output"
          assert_equal 2 "$(grep -c 'has its data' <<<"$output")" "$output"
          ;;
      esac
      ;;
  esac
  assert_all_idle
done
stack "optional $there/lockstep.so $conf"
cluster kill n1 && cluster restart n1
assert_all_idle
wait_until 10 no_helpers || fail "helpers that still run: $(helpers_running)"

test_case "another plugin in the stack has the same option: both work, with a prefix for ours"
neighbour="optional $there/neighbour.so"
show='echo "neighbour=$NEIGHBOUR cpus=$LOCKSTEP_CPUS"'
stack "$neighbour" "optional $there/lockstep.so $conf"
output=$(on_head srun -w n1 -n1 --pin=theirs --stage=$packs/good sh -c "$show; $task" 2>&1)
assert_contains "$output" 'spank: option "pin" provided by both lockstep.so and neighbour.so'
assert_contains "$output" "neighbour=theirs cpus="
assert_contains "$output" "has its data"
keep_configuration
configure "prefix = ls-"
for order in 1 2; do
  if [ $order = 1 ]; then
    stack "$neighbour" "optional $there/lockstep.so $conf"
  else
    stack "optional $there/lockstep.so $conf" "$neighbour"
  fi
  output=$(on_head srun -w n1 -n1 -c1 --pin=theirs --ls-pin=core --ls-stage=$packs/good sh -c "$show; $task" 2>&1)
  assert_lacks "$output" "cannot register"
  assert_contains "$output" "neighbour=theirs cpus=0"
  assert_contains "$output" "has its data"
done

# Without containers the two plugins work in any order, as above.
test_case "beside a plugin that begins containers, as pyxis does, data is staged if ours comes first; else a line says so"
container="optional $there/neighbour.so container=/mnt/lockstep"
stack "optional $there/lockstep.so $conf" "$container"
step on_head srun -w n1 -n1 --ls-stage=$packs/good sh -c "$task; echo \"\$(ls /mnt/lockstep | wc -l) files\""
ends 0
assert_contains "$output" "0 files"
stack "$container" "optional $there/lockstep.so $conf"
step on_head srun -w n1 -n1 --ls-stage=$packs/good sh -c "$task"
assert_equal 3 "$code" "$output"
assert_lacks "$output" "has its data"
assert_contains "$output" "lockstep: n1: cannot run /mnt/lockstep/bin/lockstep-stage: No such file or directory"
assert_contains "$output" "name lockstep.so before plugins that give tasks another root (pyxis)"
stack "$neighbour" "optional $there/lockstep.so $conf"

help=$(on_head srun --help)
for option in --ls-stage= --ls-stage-mode= --ls-stage-on-error= --ls-pin= --ls-metrics= --pin=WORD; do
  assert_contains "$help" " $option"
done
assert_lacks "$help" " --stage="

test_case "options with a prefix reach the steps of a batch script, under any --export, and from variables"
for export in ALL NONE; do
  job=$(submit_there -w n1 -n1 --export=$export --ls-stage=good --ls-pin=core --wrap "PATH=/usr/bin:/bin; export PATH; $task; srun /bin/sh -c '$show; $task'")
  await_job "$job"
  assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$(job_output "$job")"
  assert_equal 2 "$(job_output "$job" | grep -c 'has its data')" "$(job_output "$job")"
  assert_contains "$(job_output "$job")" "cpus=0"
done
output=$(cluster exec -- env LOCKSTEP_STAGE=$packs/good srun -w n1 -n1 sh -c "$task" 2>&1)
assert_contains "$output" "has its data"
assert_exit 1 on_head srun --ls-stage=/etc/slurm hostname
restore_configuration

test_case "a plugin for another Slurm: slurmd's log says so in a line, jobs run, and the option is unknown"
python3 - "$plugins/lockstep.so" "$plugins/other.so" <<'PYTHON' || fail "cannot make a plugin for another Slurm"
import struct, subprocess, sys
symbols = subprocess.run(["nm", "-D", sys.argv[1]], capture_output=True, text=True, check=True).stdout
[address] = [int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(" plugin_version")]
code = bytearray(open(sys.argv[1], "rb").read())
assert struct.unpack_from("<I", code, address)[0] >> 16 >= 22, "plugin_version is not at its address in the file"
struct.pack_into("<I", code, address, 99 << 16 | 5 << 8)
open(sys.argv[2], "wb").write(code)
PYTHON
stack "optional $there/other.so $conf"
before=$(wc -l <"$state/log/n1.slurmd.log")
cluster kill n1 && cluster restart n1
assert_all_idle
mismatch=$(tail -n +$((before + 1)) "$state/log/n1.slurmd.log" | grep -F other.so)
assert_contains "$mismatch" "Incompatible Slurm plugin $there/other.so version (99.05.0)"
assert_equal 1 "$(grep -c 'Incompatible Slurm plugin' <<<"$mismatch")" "$mismatch"
assert_equal "n1" "$(on_head srun -w n1 -n1 hostname 2>/dev/null)"
assert_exit 255 on_head srun -w n1 -n1 --stage=$packs/good hostname
assert_contains "$output" "unrecognized option '--stage"
stack "optional $there/lockstep.so $conf"
assert_all_idle

test_case "200 short steps at once, with and without data: each has its exit code"
job=$(submit_there -N2 -n2 --time=10 <<SCRIPT
#!/bin/bash
for i in {0..199}; do
  case \$((i % 4)) in
    0) options=() expected=\$((i % 7)) ;;
    1) options=(--stage=good --metrics=on) expected=\$((i % 5)) ;;
    2) options=(--pin=core) expected=0 ;;
    3) options=(--stage=missing) expected=3 ;; # an earlier step of the job might have staged it
  esac
  {
    code=0
    srun --overlap --mem=0 -N1 -n1 -w n\$((i % 2 + 1)) "\${options[@]}" sh -c "exit \$expected" 2>out.\$i || code=\$?
    echo "step \$i expected \$expected got \$code" >code.\$i
  } &
done
wait
cat code.*
SCRIPT
)
await_job "$job" 280
assert_equal "COMPLETED 0:0" "$(job_state "$job")"
output=$(job_output "$job")
assert_equal 200 "$(grep -c '^step ' <<<"$output")" "steps"
wrong=$(awk '/^step / && $4 != $6 { print $2 }' <<<"$output")
[ -z "$wrong" ] || fail "wrong exit codes: $(for i in $wrong; do grep "^step $i " <<<"$output"; cat "$shared/plugin_test/out.$i"; done)"
# The callbacks that were made to fail above have left names of their jobs, so that only this job's count.
of_this_job_is_left() { left_on "$1" | grep -E "/$job([.]|\$)"; }
is_clean() { ! of_this_job_is_left "$1" >/dev/null; }
wait_until 10 no_helpers || fail "helpers that still run: $(helpers_running)"
for node in n1 n2; do wait_until 10 is_clean $node || fail "left on $node: $(of_this_job_is_left $node)"; done
assert_all_idle
