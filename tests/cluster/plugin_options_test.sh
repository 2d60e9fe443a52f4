#!/usr/bin/env bash
# The options as users see them: help, errors at submission, and the ways of a value into a job.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"

make_pack good 8 4000
make_pack other 8 4000
mkdir -p "$shared/plugin_test/empty"
rm -rf "$shared/plugin_test/secret"
cp -r "$shared/plugin_test/good" "$shared/plugin_test/secret"
chmod 700 "$shared/plugin_test/secret"

test_case "the help of sbatch, salloc and srun shows every option with its values"
for command in sbatch salloc srun; do
  help=$(on_head $command --help)
  for option in '--stage=SRC[,SRC...]|none' '--stage-mode=block|background' '--stage-tier=disk|ram' \
    '--stage-on-error=fail|source' '--stage-verify=quick|full|off' '--stage-batch=yes|no' '--pin=auto|numa|cache|core|off[,...]' \
    '--metrics=on|off'; do
    assert_contains "$help" "$option"
  done
done

# refused COMMAND...: exit code 1 and one line, which is stored in $output.
refused() {
  assert_exit 1 "$@"
  assert_equal 1 "$(wc -l <<<"$output")" "lines in '$output'"
}

test_case "an invalid --pin value is refused with the list of valid ones"
refused on_head sbatch --pin=socket --wrap hostname
assert_contains "$output" "lockstep: --pin=socket"
assert_contains "$output" "numa"

test_case "the RAM tier is refused without a size in lockstep.conf"
refused on_head srun --stage=$packs/good --stage-tier=ram hostname
assert_contains "$output" "lockstep: --stage-tier=ram: there is no RAM tier"

test_case "each kind of bad source is refused at submission"
declare -A bad=([missing]="No such file" [secret]="Permission denied" [empty]="is empty"
  ['good,/mnt/shared/plugin_test/../plugin_test/good']="would both be")
for source in "${!bad[@]}"; do
  refused cluster exec --cwd "$packs" -- sbatch --stage="$source" --wrap hostname
  assert_contains "$output" "${bad[$source]}"
  assert_contains "$output" "$packs"
done
refused on_head sbatch --stage=/etc/slurm --wrap hostname
assert_contains "$output" "is outside the folders that may be staged: /mnt/shared"

what='echo "$(hostname) $(ls ${LOCKSTEP_DATA:-/nonexistent} 2>/dev/null | xargs)"'

test_case "a job with 1,000 sources on a slow file system is submitted within seconds"
mkdir -p "$shared/plugin_test/many"
for i in {1..1000}; do echo x >"$shared/plugin_test/many/$i"; done
sources=$(printf ",$packs/many/%d" {1..1000})
cluster meter --latency-ms 10 >/dev/null
begin=$SECONDS
job=$(submit --hold --stage="${sources:1}" --wrap true)
took=$((SECONDS - begin))
cluster meter --latency-ms 0 >/dev/null
on_head scancel "$job"
assert_at_most 5 "$took" "seconds for 1,000 sources"

test_case "#SBATCH lines apply to every srun, with any --export of sbatch and srun"
for export in ALL NONE; do
  job=$(submit_there --export=$export <<SCRIPT
#!/bin/bash
#SBATCH --stage=good,other --pin=auto -w n1,n2 -N2 -n4
PATH=/usr/bin:/bin
export PATH
srun --export=$export /bin/bash -c 'PATH=/usr/bin:/bin; $what \$(grep Cpus_allowed_list /proc/self/status | cut -f2)' | sort
SCRIPT
)
  await_job "$job"
  assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$(job_output "$job")"
  assert_equal 4 "$(job_output "$job" | grep -c -E '^n[12] good other [0-9,-]+$')" "tasks with both packs: $(job_output "$job")"
done

test_case "a variable has the effect of its option, and the option takes precedence"
output=$(cluster exec --cwd "$packs" -- env LOCKSTEP_STAGE=good srun -w n1,n2 -N2 -n2 bash -c "$what" 2>/dev/null | sort | xargs)
assert_equal "n1 good n2 good" "$output"
output=$(cluster exec --cwd "$packs" -- env LOCKSTEP_STAGE=good srun -w n1,n2 -N2 -n2 --stage=other bash -c "$what" 2>/dev/null | sort | xargs)
assert_equal "n1 other n2 other" "$output"
output=$(cluster exec --cwd "$packs" -- env LOCKSTEP_STAGE=missing srun -Q -w n1 -n1 --stage=none bash -c "$what" 2>&1 | xargs)
assert_equal "n1" "$output"
refused cluster exec --cwd "$packs" -- env LOCKSTEP_STAGE=missing sbatch --wrap hostname

test_case "salloc's options apply to its sruns; a relative path starts from the folder of the salloc"
output=$(cluster exec --cwd "$packs" -- salloc -w n1,n2 -N2 --stage=good sh -c "cd / && srun -n2 bash -c '$what'" 2>/dev/null | sort | xargs)
assert_equal "n1 good n2 good" "$output"

test_case "a change of the administrator's file takes effect at once"
keep_configuration
trap 'restore_configuration; cancel_all' EXIT
configure "enabled = no"
output=$(on_head srun -w n1 -n1 --stage=$packs/good bash -c "$what" 2>&1)
assert_contains "$output" "the administrator has switched the plugin off"
assert_contains "$output" "n1"
assert_lacks "$output" "good"
configure "allow_stage_on_error = fail"
refused on_head sbatch --stage=$packs/good --stage-on-error=source --wrap hostname
assert_equal "lockstep: --stage-on-error=source is not allowed here; the administrator allows: fail" "$output"
configure "cahe = /x"
assert_exit 0 on_head srun -n1 hostname
refused on_head srun -n1 --pin=auto hostname
assert_contains "$output" "lockstep.conf:4: unknown key 'cahe'"
restore_configuration
configuration=/etc/lockstep/lockstep.conf
as_root chown alice $configuration
refused on_head srun -w n1 -n1 --pin=auto hostname
assert_contains "$output" "lockstep: $configuration must belong to root"
assert_exit 0 on_head srun -w n1 -n1 hostname
as_root chown root $configuration
as_root sh -c "rm $configuration; mkfifo $configuration"
refused cluster exec -- timeout 10 srun -n1 --pin=auto hostname
assert_contains "$output" "cannot read $configuration: it is not a regular file"
assert_exit 0 cluster exec -- timeout 10 srun -n1 hostname
as_root rm $configuration
configure "prefix = ls-"
output=$(on_head srun -w n1 -n1 --ls-stage=$packs/good bash -c "$what" 2>/dev/null)
assert_equal "n1 good" "$output"

# refused_on_node TEXT COMMAND...: the job ends on the node, with TEXT as the plugin's only line.
refused_on_node() {
  local text=$1
  shift
  assert_exit 3 "$@"
  assert_equal "$text" "$(lines_of_ours "$output")"
  assert_lacks "$output" "started"
}

test_case "a partition's section applies on the node, and in a job's srun"
configure "[other]" "allow_stage_mode = block" "[debug]" "allow_stage_on_error = fail"
output=$(on_head srun -w n1 -n1 --stage-mode=background --stage=$packs/good bash -c "$what" 2>/dev/null)
assert_equal "n1 good" "$output"
refused_on_node "lockstep: n1: --stage-on-error=source is not allowed here; the administrator allows: fail" \
  on_head srun -w n1 -n1 --stage=$packs/good --stage-on-error=source echo started
refused on_head salloc -Q -w n1 srun --stage=$packs/good --stage-on-error=source echo started
assert_contains "$output" "--stage-on-error=source is not allowed here"
configure "[debug]" "quota = 4K" "[other]" "quota = 4G"
clear_caches
assert_exit 3 on_head srun -w n1 -n1 --stage=$packs/good echo started
assert_contains "$output" "quota 4.00 KiB"

test_case "a user cannot choose the section by a variable of the step"
cc -shared -fPIC -o "$shared/plugin_test/forge.so" -x c - <<'C' || fail "cannot compile"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
int setenv(const char* name, const char* value, int replace) {
  int (*real)(const char*, const char*, int) = (int (*)(const char*, const char*, int))dlsym(RTLD_NEXT, "setenv");
  return real(name, strcmp(name, "SLURM_JOB_PARTITION") == 0 ? "other" : value, replace);
}
C
forged=(on_head env SLURM_JOB_PARTITION=other LD_PRELOAD="$packs/forge.so" srun -w n1 -n1)
assert_contains "$("${forged[@]}" env)" "SLURM_JOB_PARTITION=other"
assert_exit 3 "${forged[@]}" --stage=$packs/good echo started
assert_contains "$output" "quota 4.00 KiB"

test_case "no task gets the key of srun's rendezvous"
restore_configuration
output=$(on_head srun -w n1,n2 -N2 --stage=$packs/good env 2>/dev/null)
assert_contains "$output" "LOCKSTEP_DATA="
assert_lacks "$output" "RENDEZVOUS"
assert_lacks "$output" "lockstep_srun"

assert_all_idle
