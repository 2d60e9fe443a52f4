#!/usr/bin/env bash
# The job scripts of digits_cnn and finetune_script, as a user submits them: staged data, 4 ranks on 2 nodes.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

test_case "the page for Python users runs as printed"
/usr/bin/python3 -c 'import torch.distributed' 2>/dev/null || { echo "skipped: python3-torch is not installed"; exit 77; }
on_head rm -rf python_start
on_head mkdir python_start
printed=$(python3 "$source_root/tests/docs/blocks.py" "$source_root/docs/start/python.md")
assert_exit 0 on_head env -C python_start OMP_NUM_THREADS=1 PATH="/mnt/lockstep/bin:/usr/bin:/bin" bash -euo pipefail -c "trap 'cat job.out 2>/dev/null' ERR; $printed"
assert_equal 4 "$(grep -c '^rank [0-3] trained on .*/tokens: 3 epochs, the last one of [1-9][0-9]* steps$' <<<"$output")" "ranks: $output"
assert_lacks "$output" "trained on packed/tokens"
assert_contains "$output" "train.py · job"
assert_contains "$output" "report: report.html"
on_head rm -rf python_start

data=$build/tests/digits
if ! output=$("$source_root/examples/digits_cnn/prepare.sh" "$data" --bin "$build/bin" 2>&1); then
  assert_contains "$output" "cannot download"
  echo "skipped: $output"
  exit 77
fi
names=(digits_cnn)
# Debian's Python has Debian's torch.
if output=$(PATH=/usr/bin:$PATH "$source_root/examples/finetune_script/prepare.py" "$data" 2>&1); then
  names+=(finetune_script)
else
  assert_contains "$output" "does not have torch"
  echo "finetune_script is left out: $output"
fi

# Copies files of a folder on the host into a folder in alice's home.
bring() {
  local to=$1 from=$2
  shift 2
  on_head mkdir -p "$to"
  tar -C "$from" -cf - "$@" | on_head tar -C "$to" -xf - || fail "cannot copy $* to $to"
}

bring data "$data" digits digits-heldout
for name in "${names[@]}"; do
  test_case "$name reads held-out digits after its job"
  [ "$name" = digits_cnn ] || bring data "$data" pretrained.pt
  bring "$name" "$build/bin" "$name"
  bring "$name" "$source_root/examples/$name" "$name.sbatch"
  cluster exec --cwd "/mnt/shared/home/alice/$name" -- sbatch --wait --output=job.out "$name.sbatch" >/dev/null ||
    fail "the job failed: $(on_head cat "$name/job.out")"
  output=$(on_head cat "$name/job.out")
  percent=$(sed -nE 's/^accuracy on 359 held-out digits: .* -> ([0-9]+)[.].*/\1/p' <<<"$output")
  [ -n "$percent" ] || fail "no accuracy in: $output"
  assert_at_least 97 "$percent" "percent of the held-out digits"
done

on_head rm -r data "${names[@]}"
assert_all_idle
