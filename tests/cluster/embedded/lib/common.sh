# shellcheck shell=bash
# Functions that the verbs of `cluster` share: messages, folders, the lock, processes.
#
# A cluster's settings are the variables cluster_*, stored in /run/lockstep-cluster/NAME/settings while it is up. Its
# state folder contains everything else:
#   shared/      /mnt/shared of every machine                  machines/M/   node M's disk (local/) and its /tmp
#   log/         a log per daemon                              live/         processes, counters; gone with the cluster

die() {
  echo "cluster: $*" >&2
  exit 1
}

# For a wrong command line.
die_usage() {
  echo "cluster: $*" >&2
  exit 2
}

# The folder that exists while a cluster of this name is up; concurrent calls lock it.
registry() { echo "/run/lockstep-cluster/$1"; }

# Prints "PID START", which distinguishes a process from a later one with the same number; nothing if it has ended.
process_identity() {
  local line fields
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  read -ra fields <<<"${line##*) }"
  [ "${fields[0]}" != Z ] && [ "${fields[0]}" != X ] && echo "$1 ${fields[19]}"
}

# Prints the process of a file with "PID START", if it lives.
living_process() {
  local identity
  identity=$(cat "$1" 2>/dev/null) || return 1
  [ -n "$identity" ] && [ "$(process_identity "${identity%% *}")" = "$identity" ] && echo "${identity%% *}"
}

# Takes this cluster's lock until the script ends. Another call may remove the folder during the wait.
lock_cluster() {
  local folder
  folder=$(registry "$1")
  while :; do
    mkdir -p "$folder" || die "cannot create $folder"
    { exec 9<"$folder"; } 2>/dev/null || continue
    flock 9
    [ /proc/self/fd/9 -ef "$folder" ] && return
  done
}

# Releases the lock. Removes its folder if no cluster is registered.
unlock_cluster() {
  local folder
  folder=$(registry "$1")
  [ -e "$folder/settings" ] || rm -rf "$folder"
  rmdir /run/lockstep-cluster 2>/dev/null
  exec 9<&-
}

# Reads the settings of a registered cluster.
load_settings() {
  local settings
  settings=$(registry "$1")/settings
  [ -r "$settings" ] || return 1
  # shellcheck source=/dev/null
  source "$settings"
}

save_settings() {
  local variable
  for variable in "${!cluster_@}"; do
    printf '%s=%q\n' "$variable" "${!variable}"
  done >"$1"
}

# Host process id of the cluster's process 1 or of a machine's keeper.
supervisor_pid() { living_process "$cluster_state/live/supervisor"; }
machine_pid() { living_process "$cluster_state/live/$1.keeper"; }

# The folder of the installed Lockstep as the machines see it.
lockstep_prefix() { if [ -n "${cluster_packages:-}" ]; then echo /usr; else echo /mnt/lockstep; fi; }

# Print the names of the nodes, and of all machines.
node_names() { seq -f 'n%g' 1 "$cluster_nodes"; }
machine_names() {
  echo head
  node_names
}

# Runs a command inside a machine, as root: in_machine MACHINE COMMAND...
# --root and --wd: in a chroot, entering the mount namespace alone would leave it.
in_machine() {
  local pid
  pid=$(machine_pid "$1") || return 1
  shift
  nsenter --target "$pid" --mount --root --wd --net --uts --ipc --cgroup --pid -- "$@" 9<&-
}

# Waits until a command succeeds: wait_until SECONDS COMMAND...
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.05
  done
}
