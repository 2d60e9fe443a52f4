# shellcheck shell=bash
# cluster up

check_options() {
  [[ $nodes =~ ^[1-9][0-9]*$ && $nodes -le 64 ]] || die_usage "--nodes '$nodes': must be a number from 1 to 64"
  [[ ${cpus:=$(nproc --all)} =~ ^[1-9][0-9]*$ ]] || die_usage "--cpus '$cpus': must be a number of at least 1"
  [[ $gpus =~ ^([0-9]|[1-9][0-9])$ ]] || die_usage "--gpus '$gpus': must be a number from 0 to 99"
  [[ $timeout =~ ^[1-9][0-9]*$ ]] || die_usage "--timeout '$timeout': must be a number of seconds"
  [[ $kill_wait =~ ^[1-9][0-9]*$ ]] || die_usage "--kill-wait '$kill_wait': must be a number of seconds"
  [[ $latency_ms =~ ^[0-9]+(\.[0-9]+)?$ ]] || die_usage "--latency-ms '$latency_ms': must be a number of milliseconds"
  case "$variant" in
    cgroup | affinity | contain | tmpfs | auth-slurm) ;;
    *) die_usage "--variant '$variant': must be one of cgroup, affinity, contain, tmpfs, auth-slurm" ;;
  esac
  if [ -n "$prefix" ]; then
    [ -d "$prefix" ] || die_usage "--prefix $prefix: no such folder"
    prefix=$(readlink -f "$prefix")
  fi
  if [ -n "$packages" ]; then
    [ -z "$prefix" ] || die_usage "--packages and --prefix exclude each other"
    compgen -G "$packages/lockstep-*.deb" >/dev/null || die_usage "--packages $packages: the folder contains no lockstep-*.deb"
    packages=$(readlink -f "$packages")
  fi
  state=$(readlink -m "${state:-/var/tmp/lockstep-cluster/$name}")
}

# Checks that this machine has the programs and features that the cluster needs.
check_machine() {
  local program package missing=()
  while read -r program package; do
    command -v "$program" >/dev/null || missing+=("$package")
  done <<'LIST'
slurmctld slurmctld
slurmd slurmd
sinfo slurm-client
munged munge
ip iproute2
nsenter util-linux
LIST
  [ -z "$prometheus" ] || command -v prometheus >/dev/null || missing+=(prometheus)
  if [ ${#missing[@]} -gt 0 ]; then
    die "missing programs; install them with: apt-get install ${missing[*]}"
  fi
  if [ "$variant" != affinity ] && [ -z "$(cgroup_plugin)" ]; then
    die "this machine does not have control groups that Slurm can use; try --variant affinity"
  fi
  unshare --mount --net --uts --ipc --pid --fork true 2>/dev/null ||
    die "cannot make namespaces here; a container needs the capability CAP_SYS_ADMIN"
}

find_metered_fs() {
  local candidate
  if [ -n "$metered_fs" ]; then
    [ -x "$metered_fs" ] || die_usage "--metered-fs $metered_fs: no such program"
    return
  fi
  for candidate in ${prefix:+"$prefix/bin/metered-fs"} "$here"/../../../build/{release,*}/bin/metered-fs; do
    if [ -x "$candidate" ] && [ -w /dev/fuse ]; then
      metered_fs=$candidate
      return
    fi
  done
}

# Job numbers continue from the last cluster on these disks: files there may have the names of jobs.
first_job_id() { cat "$state/next_job_id" 2>/dev/null || echo 1; }

make_state() {
  local one
  [ -e "$state" ] || { mkdir -p "$state" && chmod 700 "$state"; } || return 1
  rm -rf "$state/live" "$state/log" "$state/slurmctld"
  mkdir -p "$state"/{live,log,slurmctld,shared/home/{alice,bob},machines} || return 1
  chown 6001:6001 "$state/shared/home/alice" && chown 6003:6003 "$state/shared/home/bob"
  for one in $(machine_names); do
    mkdir -p "$state/machines/$one"/{local,tmp} && chmod 1777 "$state/machines/$one"/{local,tmp} || return 1
  done
  for ((one = 0; one < gpus; ++one)); do mknod "$state/live/gpu$one" c 1 3 || return 1; done
  if [ -n "$cluster_metered_fs" ]; then
    cp "$cluster_metered_fs" "$state/live/metered-fs" &&
      "$state/live/metered-fs" meter "$state/live/meter" --create --bandwidth "$bandwidth" --latency-ms "$latency_ms"
  fi
}

remember_settings() {
  cluster_name=$name cluster_nodes=$nodes cluster_cpus=$cpus cluster_gpus=$gpus cluster_prefix=$prefix cluster_packages=$packages cluster_state=$state
  cluster_variant=$variant cluster_prometheus=$prometheus cluster_metered_fs=$metered_fs
  cluster_kill_wait=$kill_wait cluster_slurm_conf_extra=$slurm_conf_extra cluster_prometheus_address=''
}

start_supervisor() {
  local log=$state/log/supervisor.log settings
  settings=$(registry "$name")/settings
  save_settings "$settings"
  cgroup_create "$name" 2>"$log" || return 1
  # The cluster must not keep the lock and the caller's output open.
  (
    # shellcheck disable=SC2016  # expands in the inner shells
    setsid bash -c 'source "$0/cgroups.sh" && cgroup_join "$1" && exec unshare --cgroup bash -c "$2" "$0" "$1" "${@:3}"' \
      "$library" "$name" 'source "$0/cgroups.sh" && cgroup_join_leaf "$1" && shift && exec "$@"' \
      unshare --pid --fork --kill-child --mount --net --uts --ipc --propagation private \
      bash "$library/supervisor.sh" "$settings" "$(first_job_id)" </dev/null &
    process_identity $! >"$state/live/parent"
  ) >>"$log" 2>&1 9<&-
}

# Makes a veth pair from this machine to the head, for Prometheus, with the first free pair of addresses.
connect_prometheus() {
  local link third fourth pid
  link=$(host_link "$name")
  pid=$(supervisor_pid) || return 1
  third=$(($(cksum <<<"$name" | cut -d' ' -f1) % 250))
  fourth=0
  while ip -o -4 address | grep -q " 198\.18\.$third\.$((fourth + 1))/"; do fourth=$(((fourth + 4) % 252)); done
  ip link add "$link" type veth peer name host0 netns "$pid" &&
    ip addr add "198.18.$third.$((fourth + 1))/30" dev "$link" && ip link set "$link" up &&
    nsenter --target "$pid" --net ip addr add "198.18.$third.$((fourth + 2))/30" dev host0 &&
    nsenter --target "$pid" --net ip link set host0 up || return 1
  cluster_prometheus_address=http://198.18.$third.$((fourth + 2)):9090
  save_settings "$(registry "$name")/settings"
}

# False if the plugin is installed, but srun does not have its options.
plugin_loaded() {
  [ -e "$cluster_prefix/lib/lockstep/lockstep.so" ] || compgen -G "${cluster_packages:-/nonexistent}/lockstep-plugin_*.deb" >/dev/null || return 0
  grep -q -e '--stage=' <<<"$(in_machine head srun --help 2>&1)"
}

# True if the supervisor runs, or has failed to start.
supervisor_decided() { supervisor_pid >/dev/null || ! living_process "$state/live/parent" >/dev/null; }

# True if all nodes are idle, or a process has ended.
settled() { all_machines_healthy || something_ended; }

# fail_up [REASON]
fail_up() {
  local report
  report=${1:-$(failure_report)}
  quiet_down
  unlock_cluster "$name"
  die "cannot start $name: $report"
}

verb_up() {
  check_options
  check_machine
  find_metered_fs
  lock_cluster "$name"
  if load_settings "$name" && supervisor_pid >/dev/null; then
    unlock_cluster "$name"
    verb_status
    return
  fi
  # From here on, an interrupt stops everything that was started.
  trap 'echo "cluster: interrupted" >&2; quiet_down; unlock_cluster "$name"; exit 130' INT TERM
  # Removes the remains of a killed cluster of this name.
  if load_settings "$name"; then quiet_down; else cgroup_remove "$name"; fi
  # Kept files survive an up that fails.
  if [ -e "$state/shared" ]; then keep_disks=yes; fi
  remember_settings
  make_state || fail_up
  start_supervisor || fail_up
  wait_until "$timeout" supervisor_decided
  supervisor_pid >/dev/null || fail_up
  if [ -n "$prometheus" ]; then connect_prometheus || fail_up; fi
  wait_until "$timeout" settled
  all_machines_healthy || fail_up
  plugin_loaded || fail_up "srun does not load the plugin: $(in_machine head srun -vv --help 2>&1 | grep -i -e spank -e plugin | head -n 5)
Its line in plugstack.conf: $(in_machine head grep -rs '^[^#]*lockstep' /etc/slurm/plugstack.conf /etc/slurm/plugstack.conf.d || echo none)"
  trap - INT TERM
  unlock_cluster "$name"
  verb_status
}

