#!/usr/bin/env bash
# All shell scripts, with or without .sh, pass shellcheck.
set -euo pipefail
# shellcheck source=tests/lint/files.sh
. "$(dirname "$0")/files.sh"
need shellcheck shellcheck

is_script() { head -c 64 "$1" | head -n 1 | tr -d '\0' | grep -qE '^#!.*\b(ba|da)?sh\b'; }

scripts=()
sourced=()
while read -r file; do
  if is_script "$file"; then
    scripts+=("$file")
  elif [[ $file == *.sh ]]; then
    sourced+=("$file")
  fi
done < <(list_files '*')

failed=0
[ ${#scripts[@]} -eq 0 ] || shellcheck --severity=warning --external-sources "${scripts[@]}" || failed=1
# A sourced file shares its variables with the file that sources it.
[ ${#sourced[@]} -eq 0 ] || shellcheck --severity=warning --exclude=SC2034,SC2154 --shell=bash "${sourced[@]}" || failed=1
exit $failed
