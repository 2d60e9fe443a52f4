# shellcheck shell=bash
# Writes the configuration files in the machines' /etc.

head_address=10.66.0.254
node_address() { echo "10.66.0.${1#n}"; }
hardware_address() { printf '02:00:0a:42:00:%02x' "${1##*.}"; } # of the interface with this address

# permanent_neighbours DEVICE: tells this machine where the others are. From 32 nodes on, the entries that they would learn
# from each other do not fit into the kernel's table, which all network namespaces of the host share.
permanent_neighbours() {
  local machine address
  for machine in $(machine_names); do
    address=$head_address
    [ "$machine" = head ] || address=$(node_address "$machine")
    echo "neighbour replace $address lladdr $(hardware_address "$address") dev $1 nud permanent"
  done | ip -batch -
}

# Slurm's description of a node's processors.
node_hardware() {
  local memory=$(($(awk '/^MemTotal/ { print $2 }' /proc/meminfo) / 1024 / cluster_nodes))
  local shape
  shape=$(slurmd -C | grep -o 'Boards=[0-9]* SocketsPerBoard=[0-9]* CoresPerSocket=[0-9]* ThreadsPerCore=[0-9]*')
  if [ "$cluster_cpus" != "$(nproc --all)" ]; then
    shape="Boards=1 SocketsPerBoard=1 CoresPerSocket=$cluster_cpus ThreadsPerCore=1"
  fi
  echo "CPUs=$cluster_cpus $shape RealMemory=$memory $([ "$cluster_gpus" = 0 ] || echo "Gres=gpu:$cluster_gpus")"
}

# Prints how the daemons and commands prove who they are.
authentication() { if [ "$cluster_variant" = auth-slurm ]; then echo slurm; else echo munge; fi; }

write_slurm_conf() {
  local node
  cat <<CONF
ClusterName=$cluster_name
SlurmctldHost=head($head_address)
SlurmUser=root
SlurmdUser=root
AuthType=auth/$(authentication)
CredType=cred/$(authentication)
MpiDefault=$(mpi_plugin)
MailProg=/bin/true
StateSaveLocation=/run/cluster/state/slurmctld
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/cluster/state/log/head.slurmctld.log
SlurmdLogFile=/run/cluster/state/log/%n.slurmd.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
SlurmdParameters=config_overrides
TmpFS=/mnt/local
FirstJobId=$1

# As on real clusters, except for the variants of "cluster up".
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
$(variant_lines)
$([ "$cluster_gpus" = 0 ] || echo GresTypes=gpu)

# Jobs start and end at once, and a lost node is noticed during a test. A machine under load must still answer in
# these times.
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=$cluster_kill_wait
MessageTimeout=30
SlurmdTimeout=30
UnkillableStepTimeout=60
InactiveLimit=0
EpilogMsgTime=0

CONF
  for node in $(node_names); do
    echo "NodeName=$node NodeAddr=$(node_address "$node") $(node_hardware) State=UNKNOWN"
  done
  echo "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP"
  printf '%s\n' "$cluster_slurm_conf_extra"
}

# Debian testing's Slurm 26.05 is built without PMIx.
mpi_plugin() {
  if compgen -G '/usr/lib/*/slurm-wlm/mpi_pmix*.so' >/dev/null; then echo pmix; else echo none; fi
}

variant_lines() {
  # Slurm cannot bind to CPUs that the machine does not have.
  local binding=task/affinity
  [ "$cluster_cpus" -le "$(nproc --all)" ] || binding=task/none
  if [ "$cluster_variant" = affinity ]; then
    echo "ProctrackType=proctrack/linuxproc"
    echo "TaskPlugin=$binding"
    return
  fi
  echo "ProctrackType=proctrack/cgroup"
  if [ $binding = task/none ]; then echo "TaskPlugin=task/none"; else echo "TaskPlugin=task/cgroup,task/affinity"; fi
  case "$cluster_variant" in
    contain) echo "PrologFlags=Contain" ;;
    tmpfs)
      echo "PrologFlags=Contain"
      echo "JobContainerType=job_container/tmpfs"
      ;;
  esac
}

write_cgroup_conf() {
  echo "CgroupPlugin=$1"
  # There is no systemd inside that could make a scope.
  [ "$1" = cgroup/v1 ] || echo "IgnoreSystemd=yes"
  echo "ConstrainCores=yes"
}

write_prometheus_yml() {
  local node
  cat <<CONF
global:
  scrape_interval: 1s
  scrape_timeout: 1s
  evaluation_interval: 1s
rule_files: [$(lockstep_prefix)/share/lockstep/lockstep.rules.yml]
scrape_configs:
  - job_name: lockstep
    static_configs:
      - targets:
CONF
  for node in $(node_names); do echo "          - $node:9753"; done
}

# add_account NAME ID HOME SHELL: adds a user and a group of that name and number to the files in $etc.
add_account() {
  sed -i "/^$1:/d" "$etc"/{passwd,group,shadow}
  echo "$1:x:$2:$2::$3:$4" >>"$etc/passwd"
  echo "$1:x:$2:" >>"$etc/group"
  echo "$1:*:::::::" >>"$etc/shadow" # slurmd starts some batch jobs by su, which asks PAM
}

# Makes a copy of the host's /etc for the cluster: write_etc FOLDER FIRST_JOB_ID
write_etc() {
  local etc=$1 node
  cp -a /etc/. "$etc" || return 1
  add_account alice 6001 /mnt/shared/home/alice /bin/bash
  add_account bob 6003 /mnt/shared/home/bob /bin/bash
  if [ -n "$cluster_packages" ]; then # a package makes this account
    sed -i '/^lockstep:/d' "$etc"/{passwd,group,shadow,gshadow}
  else
    add_account lockstep 6002 /nonexistent /usr/sbin/nologin
  fi
  {
    echo "127.0.0.1 localhost"
    echo "$head_address head"
    for node in $(node_names); do echo "$(node_address "$node") $node"; done
  } >"$etc/hosts"
  rm -rf "$etc/slurm" "$etc/munge" "$etc/lockstep"
  mkdir -m 755 "$etc/slurm" "$etc/lockstep"
  mkdir -m 700 "$etc/munge"
  (umask 077 && head -c 128 /dev/urandom >"$etc/munge/munge.key")
  (umask 077 && head -c 128 /dev/urandom >"$etc/slurm/slurm.key")
  write_slurm_conf "$2" >"$etc/slurm/slurm.conf"
  write_cgroup_conf "$(cgroup_plugin)" >"$etc/slurm/cgroup.conf"
  if [ "$cluster_gpus" != 0 ]; then
    echo "Name=gpu File=/run/cluster/state/live/gpu[0-$((cluster_gpus - 1))]" >"$etc/slurm/gres.conf"
  fi
  printf 'AutoBasePath=true\nBasePath=/mnt/local/.containers\n' >"$etc/slurm/job_container.conf"
  write_prometheus_yml >"$etc/lockstep/prometheus.yml"
  : >"$etc/slurm/plugstack.conf"
  if [ -n "$cluster_packages" ]; then
    echo "include /etc/slurm/plugstack.conf.d/*.conf" >"$etc/slurm/plugstack.conf"
    return
  fi
  if [ -e "$cluster_prefix/lib/lockstep/lockstep.so" ]; then
    echo "optional /mnt/lockstep/lib/lockstep/lockstep.so conf=/etc/lockstep/lockstep.conf" >"$etc/slurm/plugstack.conf"
  fi
  printf 'cache = /mnt/local/lockstep\nsources = /mnt/shared\nhelpers = /mnt/lockstep/bin\n' >"$etc/lockstep/lockstep.conf"
}
