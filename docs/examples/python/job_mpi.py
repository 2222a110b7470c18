"""Memory of every rank of a job, which all ranks map, over mpi4py.

    mpirun -n 4 python job_mpi.py

Shows vs.SymmetricMemory and vmmshare.job.mpi(): each rank writes its number into its own part,
and reads the right neighbour's. Needs GPUs (several ranks may share one), mpi4py with an MPI
library, and cupy. With --host it needs neither GPU nor cupy, and looks at no part.
"""

import sys

import support
import vmmshare as vs
import vmmshare.cupy
import vmmshare.job

COUNT = 1 << 18


def main():
    host = support.arguments(__doc__, "--host").host
    MPI = support.library("mpi4py.MPI", "mpi4py")
    if host:
        support.host_driver()
    else:
        cupy = support.library("cupy", "cupy-cuda12x")
        support.gpu()
    world = MPI.COMM_WORLD
    # The rank's number on its host chooses the GPU.
    device = world.Split_type(MPI.COMM_TYPE_SHARED).Get_rank() % len(vs.devices())
    memory = vs.SymmetricMemory(device, 4 * COUNT, vmmshare.job.mpi(world))
    right = (memory.rank + 1) % memory.size
    says = f"rank {memory.rank} of {memory.size}, device {device}: maps rank {right}"
    if not host:
        with cupy.cuda.Device(device):
            vmmshare.cupy.array(memory.array(memory.rank, COUNT, "float32"))[:] = memory.rank
            cupy.cuda.runtime.deviceSynchronize()
            world.Barrier()
            theirs = vmmshare.cupy.array(memory.array(right, COUNT, "float32"))
            assert bool((theirs == right).all())
            says += ", and reads its number there"
    world.Barrier()  # Nobody's part goes while others read it.
    print(says)
    return 0


if __name__ == "__main__":
    sys.exit(main())
