#!/bin/sh
# Runs everything that needs a GPU on a machine that has one (NVIDIA) and no network, in at most 8 minutes: from a
# folder that pack.sh made, or from a build tree (--programs). Prints a table; --out names the folder for it, for its
# JSON lines and for the log.
# Usage: run.sh [--cpu] [--out FOLDER] [--programs FOLDER] [--batch N]      --cpu: a dry run without a GPU
exec python3 "$(dirname "$0")/run.py" "$@"
