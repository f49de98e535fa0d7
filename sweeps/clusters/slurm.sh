#!/usr/bin/env bash
# A sweep on Slurm: a Ray cluster of the nodes of a job, and `raysweep launch` on the first of them.  Printed by
#
#   raysweep submit sweeps/scaling.yaml --set 'resources.per_worker={GPU: 1}' --storage /shared/results --nodes 8 --print slurm > job.sh
#
#   sbatch job.sh                                      # from the folder in which that command was given
#   sbatch --nodes=2 --gpus-per-node=4 job.sh          # other nodes
#   sbatch job.sh --retry-failed                       # more arguments of the launch
#
# All nodes see the sweep file and reach the storage.  Before the first job, on a node that sees the same home:
#   ray get-auth-token --generate
#
# Five minutes before the time limit the launch is asked to stop; it keeps a checkpoint of each run, and the job
# queues itself again and goes on from there.  A job that is cancelled or lost goes on when it is submitted again.
#SBATCH --job-name=raysweep-scaling
#SBATCH --nodes=8
#SBATCH --gpus-per-node=3
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# The arguments of the launch.
arguments=(sweeps/scaling.yaml --set 'resources.per_worker={GPU: 1}' --storage /shared/results)

# Where raysweep is installed: the environment that `sbatch` was called in, or this one.
[ -z "${VIRTUAL_ENV:-}" ] || PATH="$VIRTUAL_ENV/bin:$PATH"

# Settings of Ray that `raysweep launch` makes by itself only where it starts Ray.
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=0.5 TUNE_DISABLE_AUTO_CALLBACK_LOGGERS=1

# The job's number chooses the port, for jobs that share a node.
address="$(python -c 'import ray; print(ray.util.get_node_ip_address())'):$((20000 + SLURM_JOB_ID % 10000))"
per_node=(--num-cpus "${SLURM_CPUS_ON_NODE:-1}" --num-gpus "${SLURM_GPUS_ON_NODE:-0}")

# `--block` stays until its Ray ends, so that all ends with the script.
ray start --head --port "${address#*:}" --dashboard-host 127.0.0.1 "${per_node[@]}" --block &
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes $((SLURM_JOB_NUM_NODES - 1)) --ntasks $((SLURM_JOB_NUM_NODES - 1)) --exclude "$(hostname -s)" \
        ray start --address "$address" "${per_node[@]}" --block &
fi

# A launch counts the nodes when it begins, so all must be there.
python - "$address" "$SLURM_JOB_NUM_NODES" <<'WAIT'
import sys, time
import ray

address, count = sys.argv[1], int(sys.argv[2])
end = time.monotonic() + 300
while True:
    try:
        if not ray.is_initialized():
            ray.init(address, logging_level="ERROR", log_to_driver=False)
        if sum(node["Alive"] for node in ray.nodes()) >= count:
            break
    except ConnectionError:
        pass
    if time.monotonic() > end:
        sys.exit(f"raysweep: not all of the {count} nodes joined the Ray cluster at {address} within 5 minutes")
    time.sleep(1)
WAIT

# Bash runs a trap as soon as `wait` is interrupted; the second `wait` is for the launch itself, which may have ended
# meanwhile.
launch=''
asked=''
trap 'asked=yes; [ -z "$launch" ] || kill -TERM "$launch" 2>/dev/null || true' TERM
raysweep launch "${arguments[@]}" "$@" --address "$address" &
launch=$!
[ -z "$asked" ] || kill -TERM "$launch" 2>/dev/null || true
code=0
wait "$launch" || code=$?
while [ -n "$asked" ]; do
    asked=''
    code=0
    wait "$launch" || code=$?
done
# 130: interrupted and resumable.
if [ "$code" = 130 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
