#!/usr/bin/env bash
# All C++ is as clang-format leaves it.
set -euo pipefail
# shellcheck source=tests/lint/files.sh
. "$(dirname "$0")/files.sh"
need clang-format clang-format
version=$(clang-format --version | grep -oE '[0-9]+' | head -n 1)
if [ "$version" != 14 ]; then
  echo "skipped: clang-format $version has other rules than 14, which formats this tree"
  exit 77
fi
complaints=$(list_files '*.h' '*.cpp' | xargs -r clang-format --dry-run -Werror 2>&1 >/dev/null || true)
[ -n "$complaints" ] || exit 0
files=$(grep -oE '^[^ :]+:[0-9]+:[0-9]+: error' <<<"$complaints" | cut -d : -f 1 | sort -u || true)
if [ -n "$files" ]; then
  printf 'not as clang-format leaves it; run clang-format -i on\n%s\n' "$files" >&2
else
  printf '%s\n' "$complaints" >&2
fi
exit 1
