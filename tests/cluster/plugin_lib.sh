# shellcheck shell=bash
# What the plugin's tests share: packs on the shared file system, and what must be true after every job. Sourced after
# lib.sh.
packs=/mnt/shared/plugin_test

# make_pack NAME FILES BYTES_EACH: a pack of random files, seen by the nodes as $packs/NAME.
make_pack() {
  local name=$1 files=$2 bytes=$3 raw i
  raw=$(mktemp -d)
  for ((i = 0; i < files; ++i)); do head -c "$bytes" /dev/urandom >"$raw/$i.bin"; done
  mkdir -p "$shared/plugin_test"
  rm -rf "${shared:?}/plugin_test/$name"
  "$prefix/bin/lockstep-pack" create "$raw" --out "$shared/plugin_test/$name" >/dev/null || fail "cannot make the pack $name"
  rm -rf "$raw"
}

# Ends what a test that failed has left running: for a trap.
cancel_all() {
  as_root scancel --user=alice
  as_root scancel --user=bob
  assert_all_idle
}

# The administrator's file: configure LINE... has it as it was, and these lines more.
keep_configuration() { as_root cp /etc/lockstep/lockstep.conf /run/conf.kept; }
# Also where a test has put something else in its place, or changed its owner or mode.
restore_configuration() { as_root install -m 644 -o root -g root /run/conf.kept /etc/lockstep/lockstep.conf; }
configure() {
  restore_configuration
  printf '%s\n' "$@" | as_root tee -a /etc/lockstep/lockstep.conf >/dev/null
}

# bytes_read NODE: what it has read from the shared file system since the meter was reset.
bytes_read() { cluster meter --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["machines"][sys.argv[1]]["bytes_read"])' "$1"; }

# Forgets all that is staged, so that a test starts from nothing.
clear_caches() {
  local node
  for node in n1 n2 n3 n4; do root_on_node $node rm -rf /mnt/local/lockstep; done
}

# Runs sbatch in the folder of packs; the script comes from standard input.
submit_there() { cluster exec --cwd "$packs" -- sbatch --parsable --output=/mnt/shared/home/alice/job-%j.out "$@"; }

# Helpers that run anywhere in the cluster: every machine's processes are seen from the head.
helpers_running() { as_root sh -c "pgrep -af '[l]ockstep-((stage|pin) |watch)' || true"; }

# left_on NODE: what a job left there that it should not: its folder, its lease. A copy that was broken off stays, to be
# gone on with.
left_on() {
  root_on_node "$1" sh -c "cd /mnt/local/lockstep && find */jobs */leases/held -mindepth 1 -maxdepth 1; ls -d */objects/.removed-*" 2>/dev/null
}

nothing_left_on() { [ -z "$(left_on "$1")" ]; }

no_helpers() { [ -z "$(helpers_running)" ]; }

# A node tidies up after the job's end: its epilog still runs when srun is gone.
assert_nothing_left() {
  local node
  wait_until 10 no_helpers || fail "helpers that still run: $(helpers_running)"
  for node in n1 n2; do wait_until 10 nothing_left_on $node || fail "left on $node: $(left_on $node)"; done
}

# Lines of ours in $1.
lines_of_ours() { grep '^lockstep: ' <<<"$1"; }
