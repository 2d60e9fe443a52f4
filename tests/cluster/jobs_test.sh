#!/usr/bin/env bash
# The cluster as any job sees it.
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

test_case "an ordinary user's batch job runs its tasks on two nodes"
job=$(submit -N2 -n4 <<'SCRIPT'
#!/bin/bash
srun bash -c 'echo "$(id -un) on $(hostname)"'
SCRIPT
)
await_job "$job"
assert_equal "COMPLETED 0:0" "$(job_state "$job")"
assert_equal 4 "$(job_output "$job" | grep -c '^alice on n[1-4]$')"
assert_equal 2 "$(job_output "$job" | sort -u | wc -l)"

test_case "each node has its own disk, /tmp and /dev/shm; /mnt/shared is the same on all"
on_head mkdir -p places
for place in /mnt/local /tmp /dev/shm; do
  on_head srun -N2 bash -c "hostname >$place/whoami.\$SLURM_JOB_ID && [ \$(ls $place/whoami.* | wc -l) = 1 ] &&
    cat $place/whoami.* && rm $place/whoami.*" >/dev/null || fail "$place is shared between nodes"
done
on_head srun -N2 bash -c 'touch places/$(hostname)'
assert_equal 2 "$(on_head ls places | wc -l)"
on_head rm -r places

test_case "the caller gets the exit code, and the command gets standard input"
assert_exit 7 on_head bash -c 'exit 7'
assert_equal "hello" "$(echo hello | on_node n2 cat)"

test_case "a task sees its cores"
assert_equal 1 "$(on_head srun -n1 -c1 nproc)"

if command -v mpicc >/dev/null; then
  test_case "an MPI program runs over two nodes under srun"
  program=$(mktemp)
  mpicc -x c -o "$program" - <<'PROGRAM' || fail "mpicc failed"
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size, sum;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("%d of %d: %d\n", rank, size, sum);
  return MPI_Finalize();
}
PROGRAM
  on_head bash -c 'cat >hello && chmod +x hello' <"$program"
  rm "$program"
  assert_equal "0 of 4: 6 1 of 4: 6 2 of 4: 6 3 of 4: 6" "$(on_head srun -N2 -n4 ./hello | sort | xargs)"
  on_head rm hello
fi

assert_all_idle
