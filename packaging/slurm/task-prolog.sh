#!/bin/sh
# TaskProlog of slurm.conf: what a job gets by --mem is the limit of its `overspill run`, but for a quarter, and it swaps to the job's
# own directory. What the job sets itself stays.
memory=${SLURM_MEM_PER_NODE:-}
if [ -z "$memory" ]; then
    # srun does not always say it: 160M, 4G, 1.50G, of all nodes of the job.
    asked=$(scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.*TRES=[^ ]*mem=\([0-9.]*[KMGT]\).*/\1/p')
    memory=$(echo "$asked" | awk -v nodes="${SLURM_JOB_NUM_NODES:-1}" \
        '/K$/{m=1/1024} /M$/{m=1} /G$/{m=1024} /T$/{m=1048576} {printf "%d", $0 * m / nodes}')
fi
[ "${memory:-0}" -gt 0 ] || exit 0
[ -n "${OVERSPILL_MEMORY:-}" ] || echo "export OVERSPILL_MEMORY=$((memory * 3 / 4))M"
[ -n "${OVERSPILL_SWAP:-}" ] || echo "export OVERSPILL_SWAP=file:${SLURM_TMPDIR:-${TMPDIR:-/var/tmp}}"
