# shellcheck shell=bash
# Finds remains of a cluster on the machine, for tests that stop one.

# Prints everything that is left of the cluster, one item per line.
cluster_traces() {
  local process
  # Every process inside has the state folder mounted; one from exec may be in the control groups only. (Numbers of
  # namespaces do not help: the kernel reuses them for the next cluster.)
  for process in $({
    grep -lF "$state" /proc/[0-9]*/mountinfo
    grep -lE "[/-]lockstep-$cluster_name(/|$)" /proc/[0-9]*/cgroup
    grep -alF "/run/lockstep-cluster/$cluster_name/" /proc/[0-9]*/cmdline
  } 2>/dev/null | cut -d/ -f3 | sort -un | grep -vx $$); do
    echo "process: $process $(tr '\0' ' ' <"/proc/$process/cmdline")"
  done
  grep -F "$state" /proc/self/mountinfo | sed 's/^/mount: /'
  find /sys/fs/cgroup -type d -name "lockstep-$cluster_name" 2>/dev/null | sed 's/^/cgroup: /'
  find "/run/lockstep-cluster/$cluster_name" -maxdepth 0 2>/dev/null | sed 's/^/registry: /'
  find "$state" -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/state: /'
}

# Interfaces and mounts of the machine, without those of other clusters.
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
