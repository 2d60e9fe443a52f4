#!/usr/bin/env bash
# A step on 16 nodes: nobody sends more than the data, the source is read once, also if one node has the data, if few files
# may be open, and if a node's staging is killed.
export LOCKSTEP_BUILD=${LOCKSTEP_BUILD:-$(cd "$(dirname "$0")/../.." && pwd)/build/release}
exec "$(dirname "$0")/../bench/stage_nodes.sh" 16 32 cold one_holder sbatch open_files killed
