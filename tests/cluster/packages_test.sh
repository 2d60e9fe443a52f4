#!/usr/bin/env bash
# A cluster whose machines have Lockstep only from the Debian packages, with one line in plugstack.conf: staging, pinning and
# metrics work as with a prefix.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

compgen -G "$build/packages/lockstep-plugin_*.deb" >/dev/null || {
  echo "skipped: there are no packages in $build/packages; build them with: cmake --build $build --target packages"
  exit 77
}
own_cluster --packages "$build/packages" --nodes 2 || fail "cluster up --packages"

test_case "the plugin and the tools are those of the packages"
assert_equal "include /etc/slurm/plugstack.conf.d/*.conf" "$(on_head cat /etc/slurm/plugstack.conf)"
assert_equal "optional /usr/lib/lockstep/lockstep.so conf=/etc/lockstep/lockstep.conf" "$(on_head grep -v '^#' /etc/slurm/plugstack.conf.d/lockstep.conf)"
assert_equal /usr/bin/lockstep-stage "$(on_node n1 which lockstep-stage)"
assert_equal "lockstep-plugin" "$(on_node n1 dpkg -S /usr/lib/lockstep/lockstep.so | cut -d: -f1)"
[ ! -e /usr/lib/lockstep/lockstep.so ] || fail "cluster up installed the packages on the host"

test_case "a job packs, stages and reads its data"
on_head sh -c 'mkdir data && seq 5000 >data/a.txt && lockstep-pack create data --out /mnt/shared/home/alice/pack >/dev/null' || fail "lockstep-pack"
output=$(on_head srun -N2 -n2 --stage=/mnt/shared/home/alice/pack sh -c 'echo "$(hostname) $(lockstep-pack cat "$LOCKSTEP_DATA/pack" a.txt | tail -n 1)"' 2>/dev/null | sort | xargs)
assert_equal "n1 5000 n2 5000" "$output"

test_case "the package made the group, so that records exist and the exporter may read them"
output=$(on_head srun -w n1 -N1 -n1 --metrics=on sh -c 'stat -c "%G %a" "$(dirname "$LOCKSTEP_RECORD")" /run/lockstep/records; echo "$LOCKSTEP_RECORD"')
assert_contains "$output" "lockstep 751"
assert_contains "$output" "/run/lockstep/records/6001/"
assert_within 20 on_node n1 bash -c 'exec 3<>/dev/tcp/127.0.0.1/9753; printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; grep -q lockstep_exporter <&3'

test_case "a long blocking stage shows its progress in the job's output"
on_head sh -c 'mkdir big && head -c 8000000 /dev/urandom >big/a.bin && lockstep-pack create big --out /mnt/shared/home/alice/big-pack >/dev/null'
as_root sh -c 'echo "bandwidth = 200K" >>/etc/lockstep/lockstep.conf'
job=$(submit -w n1 -n1 --stage=/mnt/shared/home/alice/big-pack --wrap true)
shows_progress() { job_output "$job" | grep -q '^lockstep: n1: staging big-pack: [0-9]* % of 7'; }
assert_within 60 shows_progress
on_head scancel "$job"
await_job "$job"
as_root sed -i '/^bandwidth/d' /etc/lockstep/lockstep.conf

test_case "the doctor is content, and the job of the quickstart trains"
assert_exit 0 on_head srun -Q -N2 lockstep-doctor
token_packs "$shared/home/alice/data"
home_program text_lm text_lm
on_head sh -c 'cat >text_lm/text_lm.sbatch' <"$source_root/examples/text_lm/text_lm.sbatch"
assert_exit 0 cluster exec --cwd /mnt/shared/home/alice/text_lm -- \
  sbatch --wait --output=job.out --export=ALL,MINUTES=0.05,OMP_NUM_THREADS=1 text_lm.sbatch
assert_contains "$(on_head cat text_lm/job.out)" "perplexity on held-out pages"
assert_equal 4 "$(on_head sh -c 'ls text_lm/report/*.record | wc -l')" "records"

# The test of pinning, on this cluster.
LOCKSTEP_TEST_CLUSTER=$cluster_name "$(dirname "$0")/plugin_pin_test.sh" || fail "plugin_pin_test.sh"
assert_all_idle

test_case "a machine on which the packages are installed too"
cluster down
# A copy of dpkg's database in which they are.
known=$(mktemp -d)
mkdir -p "$known/var/lib" && cp -a /var/lib/dpkg "$known/var/lib"
dpkg --root="$known" --force-script-chrootless --no-triggers --log=/dev/null -i "$build"/packages/lockstep-plugin_*.deb >"$known/log" 2>&1
grep -q ' /etc/slurm/plugstack.conf.d/lockstep.conf ' "$known/var/lib/dpkg/status" || fail "dpkg: $(cat "$known/log")"
# shellcheck disable=SC2016  # expands in the inner shell
unshare --mount --propagation private bash -c 'mount --bind "$1/var/lib/dpkg" /var/lib/dpkg && exec "${@:2}"' bash "$known" \
  "$source_root/tests/cluster/embedded/cluster" up --name "$cluster_name" --state "$state" --packages "$build/packages" --nodes 1 ||
  fail "cluster up --packages"
rm -rf "$known"
assert_contains "$(on_head srun --help)" "--stage="
