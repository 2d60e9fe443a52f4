#!/usr/bin/env bash
# The systemd units expose little of a node: `systemd-analyze security` gives each service at most 2.0 of 10 points. The
# exporter asks for no capability, and lets only this node connect. The installed programs resolve their symbols at their
# start, and check buffers and stacks.
# Usage: hardening_test.sh SOURCE_DIR BIN_DIR
set -euo pipefail
source_root=$1
bin=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

programs=0
for program in "$bin"/lockstep-*; do
  readelf -d "$program" >"$work/dynamic" 2>/dev/null || continue # a script
  grep -Eq 'BIND_NOW|Flags:.*NOW' "$work/dynamic" || fail "$program resolves symbols late"
  nm -D "$program" >"$work/symbols"
  grep -q '__stack_chk_fail' "$work/symbols" || fail "$program does not check its stack"
  programs=$((programs + 1))
done
[ "$programs" -ge 5 ] || fail "only $programs programs were found in $bin"
grep -q '_chk@' <(nm -D "$bin/lockstep-exporter") || fail "lockstep-exporter is built without _FORTIFY_SOURCE"

exporter=$source_root/exporters/node/lockstep-exporter.service.in
grep -qx 'CapabilityBoundingSet=' "$exporter" || fail "the exporter has a capability"
grep -q -- '--listen 127.0.0.1:' "$exporter" || fail "the exporter listens beyond this node"
command -v systemd-analyze >/dev/null || { echo "skipped: needs systemd-analyze"; exit 77; }
services=0
for template in "$source_root"/{plugin,staging,exporters}/*/*.service{,.in}; do
  [ -e "$template" ] || continue
  unit=$work/$(basename "$template" .in)
  sed 's#@CMAKE_INSTALL_PREFIX@#/usr#' "$template" >"$unit"
  systemd-analyze security --offline=true --threshold=20 "$unit" >"$work/report" || { cat "$work/report"; fail "$template"; }
  tail -n 1 "$work/report"
  services=$((services + 1))
done
[ "$services" -ge 2 ] || fail "only $services services were found"
