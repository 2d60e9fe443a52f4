#!/usr/bin/env bash
# Installs missing Debian packages that Lockstep needs, by group:
#   build      compiler, libraries and headers            tools       the same without LibTorch and MPI
#   cluster    the embedded Slurm cluster and Open MPI    monitoring  Prometheus
#   corpus     the text example's corpus and tokeniser    peers       comparisons in tests and benchmarks, plots
#   test       only for the tests                         pip         Python and pip, to install PyTorch
#   package    man pages, packages and their checks
# Usage: packages.sh [--list] GROUP...   (needs root only if packages are missing)
set -euo pipefail

tools="build-essential cmake ninja-build ccache pkg-config git ca-certificates
  libslurm-dev libhwloc-dev libmicrohttpd-dev libgnutls28-dev libyaml-cpp-dev libcrypt-dev
  libcli11-dev libfmt-dev prometheus-cpp-dev nlohmann-json3-dev libxxhash-dev libarchive-dev libfuse3-dev
  libssl-dev libpng-dev libjpeg-dev libhdf5-dev libmunge-dev libgtest-dev libgmock-dev libbenchmark-dev python3"
declare -A packages=(
  [tools]="$tools"
  [build]="$tools libopenmpi-dev libtorch-dev libopenblas0-pthread"
  [cluster]="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge openmpi-bin openssh-client
    iproute2 util-linux procps fuse3"
  [corpus]="sentencepiece mandoc"
  [monitoring]="prometheus curl"
  [peers]="python3-torch python3-matplotlib python3-scipy python3-yaml rsync"
  [package]="help2man lintian rpm"
  [test]="clang clang-format clang-tidy libclang-rt-dev shellcheck python3-pil
    chromium-headless-shell openssl systemd libblas3 locales python3-setuptools"
  [pip]="python3 python3-pip"
)

list=no
if [ "${1:-}" = --list ]; then list=yes; shift; fi
wanted=()
for group in "$@"; do
  if [ -z "${packages[$group]:-}" ]; then
    echo "packages.sh: unknown group '$group'; the groups are: ${!packages[*]}" >&2
    exit 2
  fi
  # shellcheck disable=SC2206  # split on purpose
  wanted+=(${packages[$group]})
done
if [ $list = yes ]; then printf '%s\n' "${wanted[@]}"; exit 0; fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "packages.sh: this system is not Debian; install the equivalents of these packages of Debian 12 and 13: ${wanted[*]}" >&2
  exit 1
fi
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-} ${PRETTY_NAME:-$NAME}")
case $release in
  bookworm\ * | trixie\ *) ;;
  *) echo "packages.sh: not tried here: ${release#* }; the tests run on Debian 12 and 13" >&2 ;;
esac
missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ]; then
  echo "packages.sh: packages are missing: ${missing[*]}; install them, or run this script as root" >&2
  exit 1
fi

echo "installing ${#missing[@]} packages: ${missing[*]}"
# The packages' own daemons (slurmctld, munge, prometheus) must not start: the cluster runs its own copies.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod 755 $policy
  trap 'rm -f $policy' EXIT
fi
log=$(mktemp)
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
  tail -n 20 "$log" >&2
  echo "packages.sh: apt-get failed; the complete log is $log" >&2
  exit 1
fi
rm -f "$log"
