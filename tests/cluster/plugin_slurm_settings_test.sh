#!/usr/bin/env bash
# Configurations of Slurm in which the plugin must work as in the usual one: batch scripts and steps stage, pin and record, and
# the job's end leaves nothing on the nodes, except where the doctor names the setting. Settings that this release of Slurm does not have are left out.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/plugin_lib.sh
source "$(dirname "$0")/plugin_lib.sh"
version=$(slurmd -V | awk '{ print $2 }')
since() { [ "$(printf '%s\n' "$1" "$version" | sort -V | head -n 1)" = "$1" ]; }

started=no
# on_cluster OPTION...: a cluster with these options of cluster up.
on_cluster() {
  if [ $started = yes ]; then
    cluster down
    cluster up --state "$state" --nodes 2 --prefix "$prefix" "$@" >/dev/null || fail "up $*"
  else
    own_cluster --nodes 2 --prefix "$prefix" "$@" >/dev/null || fail "up $*"
  fi
  started=yes
  make_pack good 4 4000
  chmod 777 "$shared/plugin_test"
}

# runs [options of sbatch]
runs() {
  local job
  job=$({
    printf '%s\n' '#!/bin/bash' 'test -e $LOCKSTEP_DATA/good && echo batch' \
      "srun --pin=auto --metrics=on sh -c 'test -e \$LOCKSTEP_DATA/good && test -d \$LOCKSTEP_RECORD && test -n \"\$LOCKSTEP_CPUS\" && echo step'" \
      "srun --stage-mode=background sh -c 'cat \$LOCKSTEP_DATA/good/*.tar >/dev/null && echo background'"
  } | submit_there -w n1,n2 -N2 -n2 --stage=good "$@")
  await_job "$job"
  assert_equal "COMPLETED 0:0" "$(job_state "$job")" "$(job_output "$job")"
  assert_equal "2 background 1 batch 2 step" "$(job_output "$job" | grep -xE 'batch|step|background' | sort | uniq -c | xargs)" "$(job_output "$job")"
  assert_all_idle
}
works() {
  runs "$@"
  assert_nothing_left
}

test_case "PrologFlags=Contain; the doctor sees Slurm's expedited requeue"
on_cluster --variant contain --slurm-conf-extra "SlurmctldParameters=enable_expedited_requeue"
works
assert_contains "$(on_node n1 lockstep-doctor --verbose)" "n1: ok: expedited-requeue: jobs may use sbatch --requeue=expedite"

test_case "job_container/tmpfs; the doctor names folders that are private to each job"
on_cluster --variant tmpfs
works
assert_contains "$(on_node n1 lockstep-doctor --verbose)" "n1: ok: slurm-settings"
as_root sh -c 'echo "ram = 1M" >>/etc/lockstep/lockstep.conf'
assert_exit 1 on_node n1 lockstep-doctor
assert_contains "$output" "error: slurm-settings: ram_cache /dev/shm/lockstep is below /dev/shm, which job_container/tmpfs makes for each job"

if since 24.11; then
  test_case "PrologFlags=RunInJob: Slurm does not call the plugin at a job's end; the page's epilog cleans up, and the doctor names it"
  on_cluster --slurm-conf-extra $'PrologFlags=Contain,RunInJob\nEpilog=/mnt/shared/epilog'
  sed -n '/^#!\/bin\/bash$/,/^```$/{/^```/d;p}' "$source_root/docs/admins/plugin.md" >"$shared/epilog"
  chmod 755 "$shared/epilog"
  works
  assert_contains "$(on_node n1 lockstep-doctor)" "warning: slurm-settings: PrologFlags has RunInJob"

  test_case "steps that the first node of the job manages"
  on_cluster --variant contain --slurm-conf-extra "SlurmctldParameters=enable_stepmgr"
  works
  works --stepmgr

  test_case "AuthType=auth/slurm, without munge"
  on_cluster --variant auth-slurm
  works
  assert_contains "$(on_node n1 lockstep-doctor --verbose)" "n1: ok: munge: Slurm uses auth/slurm, and munge does not run"
fi
