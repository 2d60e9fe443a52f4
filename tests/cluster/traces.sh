# shellcheck shell=bash
# What a cluster leaves on the machine, for the tests that take one down.

# Notes the namespaces of the running cluster, to look for their processes later.
remember_cluster() {
  supervisor=$(cut -d' ' -f1 "$state/live/supervisor")
  namespaces=$(
    for keeper in "$supervisor" $(cut -d' ' -f1 "$state"/live/*.keeper); do
      readlink "/proc/$keeper/ns/"{pid,mnt,net}
    done | sort -u | grep -vxF "$(readlink /proc/self/ns/{pid,mnt,net})"
  )
  [ -n "$namespaces" ] || fail "the cluster has no namespaces of its own"
}

# Everything that is still there of the cluster, a line each.
cluster_traces() {
  local process
  for process in /proc/[0-9]*; do
    if readlink "$process/ns/"{pid_for_children,mnt,net} 2>/dev/null | grep -qxF "$namespaces"; then
      echo "process: ${process#/proc/} $(tr '\0' ' ' <"$process/cmdline")"
    fi
  done
  pgrep -af "/run/lockstep-cluster/$cluster_name/" | sed 's/^/process: /'
  grep -F "$state" /proc/self/mountinfo | sed 's/^/mount: /'
  find /sys/fs/cgroup -type d -name "lockstep-$cluster_name" 2>/dev/null | sed 's/^/cgroup: /'
  find "/run/lockstep-cluster/$cluster_name" -maxdepth 0 2>/dev/null | sed 's/^/registry: /'
  find "$state" -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/state: /'
}

# Interfaces and mounts of the machine; those of other clusters come and go.
machine_picture() {
  ip -o link | sed -E 's/^[0-9]+: ([^:@]+).*/\1/' | grep -v '^lockstep' | sort
  cut -d' ' -f4- /proc/self/mountinfo | sort
}

assert_no_traces() {
  local traces
  traces=$(cluster_traces)
  [ -z "$traces" ] || fail "left behind: $traces"
  assert_equal "$picture" "$(machine_picture)" "interfaces and mounts"
}
