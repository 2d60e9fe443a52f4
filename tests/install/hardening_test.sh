#!/usr/bin/env bash
# The systemd units expose little of a node: `systemd-analyze security` gives each service at most 2.0 of 10 points. And the
# exporter asks for no capability, and lets only this node connect.
# Usage: units_test.sh SOURCE_DIR
set -euo pipefail
source_root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

command -v systemd-analyze >/dev/null || { echo "skipped: needs systemd-analyze"; exit 77; }
services=0
while IFS= read -r template; do
  unit=$work/$(basename "$template" .in)
  sed 's#@CMAKE_INSTALL_PREFIX@#/usr#' "$source_root/$template" >"$unit"
  systemd-analyze security --offline=true --threshold=20 "$unit" >"$work/report" || { cat "$work/report"; echo "FAILED: $template"; exit 1; }
  tail -n 1 "$work/report"
  services=$((services + 1))
done < <(cd "$source_root" && git ls-files '*.service' '*.service.in')
[ "$services" -ge 2 ] || { echo "FAILED: only $services services were found"; exit 1; }
exporter=$source_root/exporters/node/lockstep-exporter.service.in
grep -qx 'CapabilityBoundingSet=' "$exporter" || { echo "FAILED: the exporter has a capability"; exit 1; }
grep -q -- '--listen 127.0.0.1:' "$exporter" || { echo "FAILED: the exporter listens beyond this node"; exit 1; }
