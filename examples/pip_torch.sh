#!/usr/bin/env bash
# Downloads the PyTorch wheel from the configured package index into a cache folder, once per version, and prints its
# torch folder for -DLOCKSTEP_TORCH_WHEEL=. It downloads LibTorch, NCCL and the parts of CUDA that are needed to compile
# and to run on the CPU (0.8 GB; 1.4 GB on disk); with --gpu, all parts of CUDA that LibTorch needs on a GPU (5 GB on
# disk). If you have PyTorch in a virtual environment, you do not need this script:
#   cmake --preset release-pip -DLOCKSTEP_TORCH_WHEEL=$(python3 -c 'import torch; print(torch.__path__[0])')
# Usage: pip_torch.sh [--gpu] [--version=2.11.0]        The cache is $XDG_CACHE_HOME/lockstep, or ~/.cache/lockstep.
set -euo pipefail

version=2.15.0

kind=cpu
for argument in "$@"; do
  case "$argument" in
    --gpu) kind=gpu ;;
    --version=[0-9]*) version=${argument#*=} ;;
    *)
      echo "Usage: pip_torch.sh [--gpu] [--version=$version]" >&2
      exit 2
      ;;
  esac
done

cache=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep
folder=$cache/torch-$version-$kind
if [ -d "$folder" ]; then
  echo "$folder/torch"
  exit 0
fi

python=
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -m pip --version >/dev/null 2>&1; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "pip_torch.sh: python3 does not have pip; install it (Debian: examples/packages.sh pip)" >&2
  exit 1
fi

mkdir -p "$cache"
# If several calls run at once, one of them downloads and the others wait.
exec 9>"$cache/torch-$version-$kind.lock"
flock 9
if [ ! -d "$folder" ]; then
  # Only a complete folder gets the final name; an interrupted run leaves a partial one.
  partial=$folder.partial
  rm -rf "$partial"
  install=("$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-cache-dir
    --no-compile --only-binary=:all: --target "$partial")
  echo "pip_torch.sh: downloading torch $version to $folder" >&2
  if [ $kind = gpu ]; then
    # crt has headers that compiling needs, in the version that torch requires.
    "${install[@]}" "torch==$version" "cuda-toolkit[crt]" >&2
  else
    "${install[@]}" --no-deps "torch==$version" >&2
    # The wheel's metadata has the versions that it needs.
    metadata=$partial/torch-$version.dist-info/METADATA
    requirement() {
      local found
      found=$(grep -oP "^Requires-Dist: \K$1[^=]*==[0-9.]+" "$metadata" | head -n 1)
      if [ -z "$found" ]; then
        echo "pip_torch.sh: the metadata of torch $version does not have a version of $1; set 'version' in this script to another release" >&2
        return 1
      fi
      echo "$found"
    }
    nccl=$(requirement nvidia-nccl)
    cuda=$(requirement cuda-toolkit)
    "${install[@]}" --upgrade "$nccl" "cuda-toolkit[crt,cudart,cupti]==${cuda##*==}" >&2
  fi
  mv "$partial" "$folder"
fi
echo "$folder/torch"
