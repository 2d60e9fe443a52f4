#!/bin/sh
# lockstep.so lives inside Slurm's processes: it shows SPANK's symbols and nothing else, needs nothing but libc, and
# resolves all its symbols when it is loaded.
plugin=$1
fail() { echo "FAILED: $1" >&2; exit 1; }

shown=$(nm -D --defined-only "$plugin" | awk '{ print $3 }' |
        grep -v -E '^(slurm_spank_[a-z_]+|plugin_name|plugin_type|plugin_version|spank_plugin_version)$')
[ -z "$shown" ] || fail "exported beside SPANK's symbols: $shown"
for symbol in plugin_name plugin_type plugin_version spank_plugin_version slurm_spank_init slurm_spank_init_post_opt \
              slurm_spank_task_init slurm_spank_job_epilog; do
  nm -D --defined-only "$plugin" | grep -q " $symbol\$" || fail "$symbol is not exported"
done
needed=$(readelf -d "$plugin" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' | grep -v -E '^(libc\.so\.6|ld-linux.*)$')
[ -z "$needed" ] || fail "needs $needed"
readelf -d "$plugin" | grep -q 'FLAGS_1.*NOW' || fail "not linked with -z now"
# What is left open must be the host's or libc's.
open=$(nm -D --undefined-only "$plugin" | grep ' U ' | grep -v -E '@|U (spank_|slurm_)')
[ -z "$open" ] || fail "unresolved: $open"
