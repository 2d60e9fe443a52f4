#!/usr/bin/env bash
# Source files have at most 500 lines.
set -euo pipefail
# shellcheck source=tests/lint/files.sh
. "$(dirname "$0")/files.sh"
most=500
too_long=$(list_files '*.h' '*.cpp' '*.py' '*.sh' '*.cmake' 'CMakeLists.txt' | while read -r file; do
  lines=$(wc -l <"$file")
  [ "$lines" -le $most ] || echo "$file: $lines lines, more than $most: divide it by what its parts do"
done)
[ -z "$too_long" ] || { echo "$too_long" >&2; exit 1; }
