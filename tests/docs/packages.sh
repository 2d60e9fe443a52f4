#!/usr/bin/env bash
# Makes a virtual environment with the Python packages that the tests of the documents need, in a cache folder, and
# prints the path of its python for LOCKSTEP_DOCS_PYTHON. mkdocs-material makes the site; the others test the recipes.
# Usage: packages.sh        The cache is $XDG_CACHE_HOME/lockstep, or ~/.cache/lockstep.
set -euo pipefail

packages=(mkdocs==1.6.1 mkdocs-material==9.8.1 datasets==5.2.0 tokenizers==0.23.3 pillow==13.0.0)
alone=(mosaicml-streaming==0.13.0)  # without PyTorch and the clients of clouds, which its files do not need
python=/usr/bin/python3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep
# Each list of packages has its own folder.
folder=$cache/docs-$(printf '%s\n' "${packages[@]}" "${alone[@]}" | sha256sum | cut -c1-12)
if [ ! -e "$folder/complete" ]; then
  mkdir -p "$cache"
  exec 9>"$folder.lock"
  flock 9
  if [ ! -e "$folder/complete" ]; then
    # A virtual environment of its own: datasets needs a newer numpy than Debian's packages. It cannot be moved.
    "$python" -m venv --without-pip --clear "$folder" >&2
    "$python" -m pip --python "$folder/bin/python3" install --quiet --disable-pip-version-check \
      --root-user-action=ignore "${packages[@]}" >&2
    "$python" -m pip --python "$folder/bin/python3" install --quiet --disable-pip-version-check \
      --root-user-action=ignore --no-deps "${alone[@]}" >&2
    touch "$folder/complete"
  fi
fi
echo "$folder/bin/python3"
