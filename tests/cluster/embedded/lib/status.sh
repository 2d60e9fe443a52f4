# shellcheck shell=bash
# cluster status, and the conditions that up and restart wait for

slurm_daemon() { if [ "$1" = head ]; then echo slurmctld; else echo slurmd; fi; }

# Prints the process id, as seen inside, of a machine's daemon if it runs.
service_pid() {
  local word pid
  read -r word pid 2>/dev/null <"$cluster_state/live/$1.$2.state" && [ "$word" = running ] && echo "$pid"
}

# Prints "n1 idle", a line per node, as Slurm sees them.
node_states() { timeout 20 nsenter --target "$(machine_pid head || echo 0)" --mount --root --wd --net --ipc --pid -- sinfo -h -N -o '%N %T' 2>/dev/null 9<&-; }

node_healthy() { grep -qE "^$2 (idle|allocated|mixed|completing)$" <<<"$1"; }

all_machines_healthy() {
  local node states
  states=$(node_states) && [ -n "$states" ] || return 1
  for node in $(node_names); do node_healthy "$states" "$node" || return 1; done
  [ -z "$cluster_prometheus" ] || service_pid head prometheus >/dev/null
}

# A restarted daemon may listen before the controller, which may not have noticed its end, reports the node.
machine_healthy() {
  service_pid "$1" "$(slurm_daemon "$1")" >/dev/null || return 1
  if [ "$1" = head ]; then
    all_machines_healthy
  else
    in_machine "$1" bash -c "exec 3<>/dev/tcp/$(node_address "$1")/6818" 2>/dev/null && node_healthy "$(node_states)" "$1"
  fi
}

# Prints the daemons that have ended, as "MACHINE.SERVICE STATE...".
ended_services() {
  local file
  for file in "$cluster_state"/live/*.state; do
    [ -e "$file" ] || continue
    grep -q '^running' "$file" || echo "$(basename "$file" .state) $(cat "$file")"
  done
}

something_ended() { ! supervisor_pid >/dev/null || [ -n "$(ended_services)" ]; }

# Prints which daemon failed, and the last lines of its log.
failure_report() {
  local service how machine log
  if ! supervisor_pid >/dev/null; then
    echo "the supervisor ended; the last lines of its log:"
    tail -n 15 "$cluster_state/log/supervisor.log" 2>/dev/null
    return
  fi
  read -r service how < <(ended_services)
  if [ -z "$service" ]; then
    echo "not all nodes became idle within $timeout s: $(node_states | xargs)"
    for machine in $(machine_names); do
      for log in "$cluster_state/log/$machine".{keeper,slurmctld,slurmd}.log; do
        [ ! -s "$log" ] || { echo "-- $(basename "$log")" && tail -n 4 "$log"; }
      done
    done
    return
  fi
  echo "${service#*.} on ${service%%.*} $how; the last lines of its log:"
  for log in "$cluster_state/log/$service".{log,out}; do
    if [ -s "$log" ]; then
      tail -n 15 "$log"
      return
    fi
  done
  echo "(empty)"
}

json_string() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  echo "\"${text//$'\n'/\\n}\""
}

meter_json() { "$cluster_state/live/metered-fs" meter "$cluster_state/live/meter" --json; }

status_json() {
  local separator='' node state
  printf '{"name":%s,"up":true,"variant":%s,"state":%s,"shared":%s,"logs":%s,"prefix":%s,"prometheus":%s,"nodes":[' \
    "$(json_string "$cluster_name")" "$(json_string "$cluster_variant")" "$(json_string "$cluster_state")" \
    "$(json_string "$cluster_state/shared")" "$(json_string "$cluster_state/log")" \
    "$(if [ -n "$cluster_prefix" ]; then json_string "$cluster_prefix"; else echo null; fi)" \
    "$(if [ -n "$cluster_prometheus" ]; then json_string "$cluster_prometheus_address"; else echo null; fi)"
  while read -r node state; do
    [ -n "$node" ] || continue
    printf '%s{"name":%s,"state":%s}' "$separator" "$(json_string "$node")" "$(json_string "$state")"
    separator=,
  done <<<"$1"
  printf '],"meter":%s}\n' "$(if [ -n "$cluster_metered_fs" ]; then meter_json; else echo null; fi)"
}

verb_status() {
  local states ended
  if ! load_settings "$name" || ! supervisor_pid >/dev/null; then
    if [ -n "$json" ]; then printf '{"name":%s,"up":false}\n' "$(json_string "$name")"; else echo "$name is not up"; fi
    return 1
  fi
  states=$(node_states)
  ended=$(ended_services)
  if [ -n "$json" ]; then
    status_json "$states"
  else
    echo "$name is up: $cluster_nodes nodes, $cluster_cpus CPUs each, variant $cluster_variant"
    sed 's/^/  /' <<<"${states:-slurmctld does not answer}"
    [ -z "$ended" ] || sed -E 's/^([^.]*)\.(\S*) (.*)/  \1: \2 \3/' <<<"$ended"
    echo "  shared files: $cluster_state/shared ($(if [ -n "$cluster_metered_fs" ]; then echo metered; else echo not metered; fi)), inside: /mnt/shared"
    echo "  logs: $cluster_state/log"
    [ -z "$cluster_prometheus" ] || echo "  Prometheus: $cluster_prometheus_address"
  fi
  [ -z "$ended" ] && all_machines_healthy
}
