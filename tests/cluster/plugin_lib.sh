# shellcheck shell=bash
# Functions for the plugin's tests: packs on the shared file system, and checks after every job. Sourced after lib.sh.
packs=/mnt/shared/plugin_test

# make_pack NAME FILES BYTES_EACH: makes a pack of random files; the nodes see it as $packs/NAME.
make_pack() {
  local name=$1 files=$2 bytes=$3 raw i
  raw=$(mktemp -d)
  for ((i = 0; i < files; ++i)); do head -c "$bytes" /dev/urandom >"$raw/$i.bin"; done
  mkdir -p "$shared/plugin_test"
  rm -rf "${shared:?}/plugin_test/$name"
  "$prefix/bin/lockstep-pack" create "$raw" --out "$shared/plugin_test/$name" >/dev/null || fail "cannot make the pack $name"
  rm -rf "$raw"
}

# Ends all jobs: for the trap of a test that fails.
cancel_all() {
  as_root scancel --user=alice
  as_root scancel --user=bob
  assert_all_idle
}

# The administrator's file: configure LINE... adds lines to the original.
keep_configuration() { as_root cp /etc/lockstep/lockstep.conf /run/conf.kept; }
# Works also if a test has replaced the file, or changed its owner or mode.
restore_configuration() { as_root install -m 644 -o root -g root /run/conf.kept /etc/lockstep/lockstep.conf; }
configure() {
  restore_configuration
  printf '%s\n' "$@" | as_root tee -a /etc/lockstep/lockstep.conf >/dev/null
}

# bytes_read NODE: prints the bytes that the node has read from the shared file system since the last reset of the meter.
bytes_read() { cluster meter --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["machines"][sys.argv[1]]["bytes_read"])' "$1"; }

# Empties the caches of all nodes.
clear_caches() {
  local node
  for node in n1 n2 n3 n4; do root_on_node $node rm -rf /mnt/local/lockstep; done
}

# Runs sbatch in the folder of the packs; reads the script from standard input.
submit_there() { cluster exec --cwd "$packs" -- sbatch --parsable --output=/mnt/shared/home/alice/job-%j.out "$@"; }

# Prints the helpers that run in the cluster: the head sees the processes of all machines.
helpers_running() { as_root sh -c "pgrep -af '[l]ockstep-((stage|pin) |watch)' || true"; }

# left_on NODE: prints the names of jobs that have ended: folders, leases, half-removed objects. An interrupted copy may
# stay, so that the next job continues it.
left_on() {
  root_on_node "$1" sh -c "cd /mnt/local/lockstep && find */jobs */leases/held -mindepth 1 -maxdepth 1; ls -d */objects/.removed-*" 2>/dev/null
}

nothing_left_on() { [ -z "$(left_on "$1")" ]; }

no_helpers() { [ -z "$(helpers_running)" ]; }

# The command lines of all our processes, on all nodes and on the login node.
our_command_lines() {
  as_root sh -c 'for process in /proc/[0-9]*; do case $(readlink "$process/exe") in */lockstep-*) tr "\0" " " <"$process/cmdline" && echo ;; esac; done'
}
# staging_on NODE: prints the processes that stage there. Every node sees the processes of all.
# shellcheck disable=SC2016  # expands on the node
staging_on() { root_on_node "$1" sh -c 'pgrep --ns $$ --nslist net -f "[l]ockstep-stage step\$"'; }
copying_on() { root_on_node "$1" sh -c 'ls -d /mnt/local/lockstep/*/objects/.incoming-*'; }

# The nodes' epilogs may still run after srun has ended.
assert_nothing_left() {
  local node
  wait_until 10 no_helpers || fail "helpers that still run: $(helpers_running)"
  for node in n1 n2; do wait_until 10 nothing_left_on $node || fail "left on $node: $(left_on $node)"; done
}

# Prints the lines of $1 that are the plugin's.
lines_of_ours() { grep '^lockstep: ' <<<"$1"; }
