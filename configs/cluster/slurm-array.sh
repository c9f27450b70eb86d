#!/usr/bin/env bash
# Run a jobs file as a Slurm array, one job per array index. From the root of a checkout on a shared file system:
#
#     sbatch --array=0-8 configs/cluster/slurm-array.sh configs/digits-sweep.toml
#
# digits-sweep.toml has nine jobs, so the indices are 0 to 8. `briquette plan JOBS` lists the jobs of a file in order. An array
# with fewer indices than jobs also runs every job: index I of N runs the jobs I, I+N, I+2N and so on.
#
# To continue after a failure, a time limit or a preemption, submit the same line again: finished jobs are skipped. To repeat
# only some indices, give the length of the full array as the last argument:
#
#     sbatch --array=3,5 configs/cluster/slurm-array.sh configs/digits-sweep.toml 9
#
# When the array has finished, this writes the report page of all jobs and runs the jobs that are missing:
#
#     briquette run configs/digits-sweep.toml --resume
#
#SBATCH --job-name=briquette
#SBATCH --output=briquette-%A-%a.log
#SBATCH --cpus-per-task=2
#SBATCH --mem=4G
#SBATCH --time=01:00:00
#SBATCH --requeue
# Sends SIGTERM 60 seconds before the time limit. briquette then removes its temporary files and stops.
#SBATCH --signal=B:TERM@60
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  echo "usage: sbatch --array=0-LAST slurm-array.sh JOBS [LENGTH]" >&2
  exit 2
fi
if [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
  echo "slurm-array.sh: SLURM_ARRAY_TASK_ID is not set; submit with sbatch --array=0-LAST" >&2
  exit 2
fi

shard=auto
if [ $# -eq 2 ]; then
  shard=$SLURM_ARRAY_TASK_ID/$2
elif [ "${SLURM_ARRAY_TASK_MIN:-0}" -ne 0 ] || [ "$SLURM_ARRAY_TASK_COUNT" -ne $((SLURM_ARRAY_TASK_MAX + 1)) ]; then
  echo "slurm-array.sh: the array has only some of the indices from 0; give the length of the full array after JOBS" >&2
  exit 2
fi

# Replaces this shell, so that briquette itself gets the signals of Slurm.
exec briquette run "$1" --shard "$shard" --resume --threads "${SLURM_CPUS_PER_TASK:-0}"
