#!/usr/bin/env bash
# Installs the Python packages that the tests labelled "peers" compare our files with into a cache folder, and prints
# the folder for PYTHONPATH. They also need Debian's packages of the group "peers".
# Usage: packages.sh        The cache is $XDG_CACHE_HOME/lockstep, or ~/.cache/lockstep.
set -euo pipefail

packages=(megatron-core==0.16.1 webdataset==1.0.2 braceexpand==0.1.7 tensorboard==2.21.0 protobuf==7.36.2 absl-py==2.5.1)
python=/usr/bin/python3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep
# Each list of packages has its own folder.
folder=$cache/peers-$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c1-12)
if [ ! -d "$folder" ]; then
  mkdir -p "$cache"
  part=$(mktemp -d "$cache/peers.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  # --no-deps: the tests use parts that need no other package, and megatron-core would install CUDA.
  "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
    --target "$part/peers" "${packages[@]}" >&2
  mv -T "$part/peers" "$folder"
fi
echo "$folder"
