# shellcheck shell=bash
# cluster down

host_link() { printf 'lockstep%07x' $(($(cksum <<<"$1" | cut -d' ' -f1) & 0xfffffff)); }

supervisor_gone() { ! supervisor_pid >/dev/null; }

# The next cluster on the same disks continues with this number; see first_job_id.
remember_next_job() {
  local next
  [ -n "$keep_disks" ] && service_pid head slurmctld >/dev/null || return 0
  next=$(in_machine head timeout 5 scontrol show config 2>/dev/null | sed -n 's/^NEXT_JOB_ID *= *//p')
  [ -z "$next" ] || echo "$next" >"$cluster_state/next_job_id"
}

# Ends every process and removes their remains; true if nothing is left. The state folder stays.
stop_processes() {
  local pid
  if pid=$(supervisor_pid); then
    remember_next_job
    kill -9 "$pid" 2>/dev/null
    wait_until 20 supervisor_gone || return 1
  fi
  ip link del "$(host_link "$cluster_name")" 2>/dev/null
  wait_until 20 cgroup_remove "$cluster_name"
}

remove_state() {
  local state=$cluster_state
  rm -rf "$state/live" "$state/slurmctld"
  if [ -n "$keep_disks" ]; then return; fi
  # The caller chose the folder, which may contain other files.
  rm -rf "$state"/{shared,machines,log} "$state/next_job_id"
  rmdir "$state" 2>/dev/null
  rmdir /var/tmp/lockstep-cluster 2>/dev/null
}

quiet_down() {
  stop_processes || die "processes of $cluster_name do not end; inspect them with: ps -e -o pid,stat,wchan,args"
  remove_state
  rm -f "$(registry "$cluster_name")/settings"
}

verb_down() {
  lock_cluster "$name"
  if load_settings "$name"; then
    quiet_down
  else
    # Control groups and the interface of an unregistered cluster are found by its name.
    ip link del "$(host_link "$name")" 2>/dev/null
    wait_until 20 cgroup_remove "$name" || die "processes of $name do not end; inspect them with: ps -e -o pid,stat,wchan,args"
    if [ -z "$keep_disks" ] && [ -n "$state" ]; then
      cluster_state=$(readlink -m "$state")
      remove_state
    fi
  fi
  unlock_cluster "$name"
}
