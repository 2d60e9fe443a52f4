# shellcheck shell=bash
# Control groups. The whole cluster runs below one group, lockstep-NAME, in each hierarchy of the host, and sees that group
# as the root (a cgroup namespace). So clusters with the same node names and job numbers are separate, and the remains of a
# cluster are found by its name.

# "MOUNTPOINT CONTROLLERS" for each cgroup v1 hierarchy with controllers, or "MOUNTPOINT v2".
cgroup_hierarchies() {
  awk '{
    for (i = 7; i < NF; i++) if ($i == "-") break
    type = $(i + 1); count = split($(i + 3), options, ","); controllers = ""
    if (type == "cgroup") {
      for (o = 1; o <= count; o++)
        if (options[o] ~ /^(cpu|cpuacct|cpuset|memory|devices|freezer|pids|blkio)$/)
          controllers = controllers (controllers == "" ? "" : ",") options[o]
      if (controllers != "" && !seen[controllers]++) print $5, controllers
      v1 = 1
    }
    if (type == "cgroup2" && $5 == "/sys/fs/cgroup") v2 = $5
  } END { if (v2 != "" && !v1) print v2, "v2" }' /proc/self/mountinfo
}

# Prints "cgroup/v1" or "cgroup/v2", as Slurm calls them, or nothing if there is neither.
cgroup_plugin() {
  case "$(cgroup_hierarchies)" in
    *" v2"*) echo cgroup/v2 ;;
    *freezer*) echo cgroup/v1 ;;
  esac
}

cgroup_create() {
  local mount controllers group file
  while read -r mount controllers; do
    group=$mount/lockstep-$1
    mkdir -p "$group" || return 1
    case ",$controllers," in
      *,cpuset,*)
        for file in cpuset.cpus cpuset.mems; do cat "$mount/$file" >"$group/$file"; done
        ;;
      ,v2,)
        for file in cpuset cpu memory pids; do
          echo "+$file" >"$mount/cgroup.subtree_control"
        done 2>/dev/null
        ;;
    esac
  done < <(cgroup_hierarchies)
  return 0
}

# Moves this shell to the cluster's group.
cgroup_join() {
  local mount controllers
  while read -r mount controllers; do
    echo "$BASHPID" >"$mount/lockstep-$1/cgroup.procs" || return 1
  done < <(cgroup_hierarchies)
}

# cgroup v2 allows processes in leaves only: moves this shell, the last process in the cluster's group, to a leaf, and
# enables the controllers where slurmd makes its groups.
cgroup_join_leaf() {
  local mount controllers controller group
  while read -r mount controllers; do
    [ "$controllers" = v2 ] || continue
    group=$mount/lockstep-$1
    mkdir -p "$group/init.scope" "$group/system.slice" && echo "$BASHPID" >"$group/init.scope/cgroup.procs" || return 1
    for controller in cpuset cpu memory pids; do
      echo "+$controller" >"$group/cgroup.subtree_control" && echo "+$controller" >"$group/system.slice/cgroup.subtree_control"
    done
  done < <(cgroup_hierarchies)
  return 0
}

# Mounts the hierarchies as the cluster's cgroup namespace sees them; /sys is a new sysfs here.
cgroup_mount() {
  local mount controllers controller target
  case "$1" in *" v2") ;; ?*) mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup || return 1 ;; esac
  while read -r mount controllers; do
    if [ "$controllers" = v2 ]; then
      mount -t cgroup2 cgroup2 /sys/fs/cgroup
      return
    fi
    target=/sys/fs/cgroup/$controllers
    mkdir -p "$target"
    mount -t cgroup -o "$controllers" cgroup "$target" || return 1
    for controller in ${controllers//,/ }; do
      [ -e "/sys/fs/cgroup/$controller" ] || ln -s "$controllers" "/sys/fs/cgroup/$controller"
    done
  done < <([ -z "$1" ] || echo "$1")
}

# The cluster's groups on the host, children first.
cgroup_folders() {
  local mount controllers
  while read -r mount controllers; do
    [ ! -d "$mount/lockstep-$1" ] || find "$mount/lockstep-$1" -depth -type d 2>/dev/null
  done < <(cgroup_hierarchies)
}

# Kills the processes in the cluster's groups and removes the groups. True if none is left.
cgroup_remove() {
  local folder pid
  while read -r folder; do
    while read -r pid; do
      [ "$pid" = 0 ] || kill -9 "$pid" 2>/dev/null
    done < <(cat "$folder/cgroup.procs" 2>/dev/null)
    rmdir "$folder" 2>/dev/null
  done < <(cgroup_folders "$1")
  [ -z "$(cgroup_folders "$1")" ]
}
