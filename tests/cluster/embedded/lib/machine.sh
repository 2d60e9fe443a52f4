#!/usr/bin/env bash
# One machine of the cluster, the head or a node: makes its file systems and network, starts its daemons and keeps the
# namespaces. SIGUSR1 starts ended daemons again. The supervisor calls: machine.sh SETTINGS MACHINE
set -uo pipefail
library=$(dirname "$0")
# shellcheck source=tests/cluster/embedded/lib/common.sh
source "$library/common.sh"
# shellcheck source=tests/cluster/embedded/lib/cgroups.sh
source "$library/cgroups.sh"
# shellcheck source=tests/cluster/embedded/lib/configuration.sh
source "$library/configuration.sh"
# shellcheck source=/dev/null
source "$1"
machine=$2

state=$cluster_state
log=/run/cluster/state/log
live=/run/cluster/state/live
declare -A pids=()

give_up() {
  echo "$machine: $*" >&2
  echo "failed" >"${live}/$machine.keeper.state" 2>/dev/null || echo "failed" >"$state/live/$machine.keeper.state"
  exit 1
}

# Mounts everything below the base folder first, because the state and the prefix may be below /run, /tmp or /mnt, which
# are covered later.
make_file_systems() {
  local base=$state/live/base hierarchies
  hierarchies=$(cgroup_hierarchies)
  mount -t tmpfs -o mode=755 tmpfs "$base/run" &&
    mkdir -m 700 "$base/run/cluster" && mkdir -p "$base/run/cluster/"{state,prefix} "$base/run/"{lock,munge,slurm/spool,slurmctld,lockstep/records} &&
    mount --bind "$state" "$base/run/cluster/state" || return 1
  chmod 1777 "$base/run/lock"
  if [ -n "$cluster_prefix" ]; then mount --bind "$cluster_prefix" "$base/run/cluster/prefix" || return 1; fi
  mount --bind "$base/etc" /etc &&
    mount --rbind "$base/run" /run &&
    mount --bind "/run/cluster/state/machines/$machine/tmp" /tmp &&
    mount -t tmpfs -o mode=755 tmpfs /mnt && mkdir /mnt/lockstep /mnt/shared /mnt/local &&
    mount --bind /run/cluster/prefix /mnt/lockstep &&
    mount --bind "/run/cluster/state/machines/$machine/local" /mnt/local &&
    mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm &&
    mount -t sysfs sysfs /sys && cgroup_mount "$hierarchies"
}

make_network() {
  [ "$machine" != head ] || return 0
  echo "$machine" >/proc/sys/kernel/hostname
  local address
  address=$(node_address "$machine")
  nsenter --net=/proc/1/ns/net ip link add "v$machine" master br0 up type veth peer name eth0 netns $$ &&
    ip link set lo up && ip link set eth0 address "$(hardware_address "$address")" &&
    ip addr add "$address/24" dev eth0 && ip link set eth0 up && permanent_neighbours eth0
}

running() { [ -n "${pids[$1]:-}" ] && kill -0 "${pids[$1]}" 2>/dev/null; }

# launch SERVICE COMMAND...
launch() {
  local service=$1
  shift
  setsid "$@" >>"$log/$machine.$service.out" 2>&1 </dev/null &
  pids[$service]=$!
  echo "running $!" >"$live/$machine.$service.state"
}

# ready SERVICE CONDITION...: waits until the condition is true; false if the daemon ends first.
ready() {
  local service=$1
  shift
  until "$@" 2>/dev/null; do
    running "$service" || return 1
    sleep 0.05
  done
}

port_open() { (exec 3<>"/dev/tcp/$1/$2"); }

start_munged() {
  launch munged munged --foreground --force --log-file="$log/$machine.munged.log" --pid-file=/run/munge/munged.pid \
    --seed-file=/run/munge/munged.seed
  ready munged test -S /run/munge/munge.socket.2
}

start_shared() {
  if [ -z "$cluster_metered_fs" ]; then
    mountpoint -q /mnt/shared || mount --bind /run/cluster/state/shared /mnt/shared
    return
  fi
  # A killed daemon leaves a mount that answers "Transport endpoint is not connected".
  umount --lazy /mnt/shared 2>/dev/null
  launch shared /run/cluster/state/live/metered-fs mount /run/cluster/state/shared /mnt/shared \
    --meter "$live/meter" --machine "$machine"
  ready shared mountpoint -q /mnt/shared
}

start_slurmctld() {
  launch slurmctld slurmctld -D
  ready slurmctld port_open "$head_address" 6817
}

start_prometheus() {
  mkdir -p /run/prometheus && chown nobody: /run/prometheus
  launch prometheus setpriv --reuid nobody --regid nogroup --clear-groups prometheus \
    --config.file=/etc/lockstep/prometheus.yml --storage.tsdb.path=/run/prometheus --web.listen-address=0.0.0.0:9090
  ready prometheus port_open 127.0.0.1 9090
}

start_slurmd() {
  until port_open "$head_address" 6817 2>/dev/null; do sleep 0.05; done
  launch slurmd slurmd -D -N "$machine"
}

# Restarts it when it ends, as a service manager does.
start_exporter() {
  launch exporter setpriv --reuid lockstep --regid lockstep --clear-groups bash -c \
    'while :; do "$@"; sleep 1; done' exporter \
    "$(lockstep_prefix)/bin/lockstep-exporter" --records /run/lockstep/records --cache /mnt/local/lockstep --listen 0.0.0.0:9753
}

start_missing() {
  local service
  for service in "${services[@]}"; do
    running "$service" || "start_$service" || echo "$machine: $service did not start" >&2
  done
}

cd / || exit 1
read -r host_pid _ </proc/self/stat
process_identity "$host_pid" >"$state/live/$machine.keeper" || exit 1
mount -t proc proc /proc || give_up "cannot mount /proc"
make_file_systems || give_up "cannot make the file systems"
make_network || give_up "cannot make the network"

services=(shared)
[ "$(authentication)" = slurm ] || services=(munged shared)
if [ "$machine" = head ]; then
  services+=(slurmctld)
  [ -z "$cluster_prometheus" ] || services+=(prometheus)
else
  if [ -n "$cluster_packages" ]; then
    systemd-tmpfiles --create lockstep-plugin.conf || give_up "cannot make the folders of the packages"
  else
    chgrp lockstep /run/lockstep/records
  fi
  install -d -m 755 /mnt/local/lockstep
  services+=(slurmd)
  [ ! -x "$(lockstep_prefix)/bin/lockstep-exporter" ] || services+=(exporter)
fi

trap 'wanted=yes' USR1
wanted=yes
while :; do
  if [ "$wanted" = yes ]; then
    wanted=no
    start_missing
  fi
  ended=
  wait -n -p ended
  status=$?
  if [ $status = 127 ] && [ -z "${ended:-}" ]; then sleep infinity & fi # wait -n needs a child
  for service in "${!pids[@]}"; do
    if [ "${pids[$service]}" = "${ended:-}" ]; then echo "ended $status" >"$live/$machine.$service.state"; fi
  done
done
