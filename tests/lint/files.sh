# Sourced by the checks: goes to the tree's root and defines how to list its files.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

# The project's files that match the patterns, one per line: tracked ones and new ones that git does not ignore, or,
# in an unpacked release, all files outside of build folders.
list_files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
      [ ! -f "$file" ] || printf '%s\n' "$file"
    done
  else
    local pattern
    for pattern in "$@"; do
      find . -path ./build -prune -o -type f -name "$pattern" -print | sed 's|^\./||'
    done | sort -u
  fi
}

# Ends the check when a program is missing: need PROGRAM PACKAGE.
need() {
  command -v "$1" >/dev/null || { echo "$1 is missing: install the package $2" >&2; exit 1; }
}
