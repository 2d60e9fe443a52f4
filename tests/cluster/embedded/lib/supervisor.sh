#!/usr/bin/env bash
# Process 1 of the cluster. When it ends, for any reason, the kernel ends all other processes of the cluster with their
# mounts and interfaces. `cluster up` starts it in new namespaces: supervisor.sh SETTINGS FIRST_JOB_ID
set -euo pipefail
library=$(dirname "$0")
# shellcheck source=tests/cluster/embedded/lib/common.sh
source "$library/common.sh"
# shellcheck source=tests/cluster/embedded/lib/cgroups.sh
source "$library/cgroups.sh"
# shellcheck source=tests/cluster/embedded/lib/configuration.sh
source "$library/configuration.sh"
# shellcheck source=/dev/null
source "$1"

live=$cluster_state/live
# /proc is still the host's: the host signals this process by its number there.
read -r host_pid _ </proc/self/stat

echo head >/proc/sys/kernel/hostname
mkdir -p "$live/base"
mount -t tmpfs -o mode=755 tmpfs "$live/base"
mkdir "$live/base/etc" "$live/base/run"
write_etc "$live/base/etc" "$2"

# Installs the packages over this machine's files: an overlay in memory takes what dpkg writes.
install_packages() {
  local folder layer=$live/packages
  mkdir -p "$layer"
  mount -t tmpfs -o mode=755 tmpfs "$layer"
  for folder in usr var/lib/dpkg; do
    mkdir -p "$layer/upper/$folder" "$layer/work/$folder"
    mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$layer/upper/$folder,workdir=$layer/work/$folder" "/$folder"
  done
  mount --bind "$live/base/etc" /etc
  # The host's /run is still mounted here; the machines get their own later.
  # shellcheck disable=SC2016  # expands in the inner shell
  # --force-confmiss: if the host has the packages too, dpkg knows their configuration files, which the cluster's /etc does
  # not have, and would take them for removed by the administrator.
  unshare --mount bash -c 'mount -t tmpfs tmpfs /run && exec dpkg --no-triggers --force-confmiss --log=/dev/null -i "$@"' dpkg "$cluster_packages"/lockstep-*.deb
  printf 'cache = /mnt/local/lockstep\nsources = /mnt/shared\n' >>/etc/lockstep/lockstep.conf
}

if [ -n "$cluster_packages" ]; then install_packages; fi

ip link set lo up
ip link add br0 address "$(hardware_address "$head_address")" type bridge
ip addr add "$head_address/24" dev br0
ip link set br0 up
permanent_neighbours br0

# job_container/tmpfs binds the mount namespace of a job below that of its node. The kernel allows this only if the job's
# namespace has the higher number. Recent kernels (seen with 6.18) assign numbers in batches per CPU, so only a namespace
# from the CPU with the lowest numbers is below all later ones.
cpu_with_lowest_namespaces() {
  local cpu lowest=0
  touch "$live/namespace"
  for ((cpu = 1; cpu < $(nproc --all); cpu++)); do
    # shellcheck disable=SC2016  # expands in the inner shell
    taskset -c "$lowest" unshare --mount --mount-proc --propagation private bash -c '
      taskset -c "$1" unshare --mount --propagation private sleep infinity &
      until [ "$(readlink "/proc/$!/exe")" = "$(readlink -f "$(command -v sleep)")" ]; do :; done
      mount --bind "/proc/$!/ns/mnt" "$2"; result=$?
      kill -9 $!; exit $result' bash "$cpu" "$live/namespace" 2>/dev/null || lowest=$cpu
  done
  echo "$lowest"
}

on_cpu=()
if [ "$cluster_variant" = tmpfs ]; then on_cpu=(taskset -c "$(cpu_with_lowest_namespaces)"); fi

for machine in $(machine_names); do
  own=(--mount --propagation private)
  [ "$machine" = head ] || own+=(--net --uts --ipc)
  setsid "${on_cpu[@]}" unshare "${own[@]}" taskset -c "0-$(($(nproc --all) - 1))" bash "$library/machine.sh" "$1" "$machine" >"$cluster_state/log/$machine.keeper.log" 2>&1 &
done
process_identity "$host_pid" >"$live/supervisor"

# Bash reaps the orphans of the cluster; this process only waits.
set +e
while :; do
  wait -n
  sleep infinity &
  wait $!
done
