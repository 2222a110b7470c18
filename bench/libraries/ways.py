"""All rows: what is measured, by which class, and what it needs."""

SECTIONS = {
    "tensors": "Handing over tensors",
    "jobs": "Symmetric memory of a job of two ranks",
    "ordering": "Ordering two ranks' streams",
}

# Seconds for a row, and for all, of a whole run and of a quick one. Who gives all more gives each
# row more.
ALL = (225, 38)
SECONDS = {"tensors": (35, 10), "jobs": (25, 8), "ordering": (25, 8), "planted": (2, 2)}


def _way(section, name, work, module, *, quick=True, host=False, gpus=1, environment=None,
         note=""):
    """quick: also part of --quick. host: runs on the host-memory driver. gpus: how many it
    needs."""
    return {"section": section, "name": name, "work": work, "module": module, "quick": quick,
            "host": host, "gpus": gpus, "environment": environment or {}, "note": note}


WAYS = [
    _way("tensors", "vmmshare.torch", "TorchTensors", "tensors",
         note="share_all() and open_all() of tensors in a pool"),
    _way("tensors", "vmmshare arrays", "Arrays", "tensors", host=True,
         note="share_all() and open_all() without PyTorch"),
    _way("tensors", "torch.multiprocessing", "TorchMultiprocessing", "tensors_others",
         note="legacy IPC; opened segments are cached"),
    _way("tensors", "cuda.core pool", "CudaCore", "tensors_others",
         note="stream-ordered pool with IPC, a descriptor a buffer, tensors by DLPack; the owner "
              "exports a buffer once, in the first round"),
    _way("tensors", "legacy IPC arena: tensors", "TensorArena", "tensors_others",
         note="by hand: one handle, opened once, then offsets; slices of one tensor"),
    _way("tensors", "legacy IPC arena: addresses", "Arena", "tensors_others", quick=False,
         host=True, note="the same without PyTorch"),
    _way("tensors", "RMM pool: legacy IPC by hand", "RmmPool", "tensors_others", quick=False,
         note="RMM has no IPC: handles of its pool's chunks, and offsets; its pool begins at "
              "3 GiB"),
    _way("jobs", "vmmshare over TCPStore", "SymmetricOverStore", "jobs", host=True,
         note="vmmshare.job.store() over PyTorch's store; new memory each time"),
    _way("jobs", "vmmshare over torch.distributed", "SymmetricOverDistributed", "jobs",
         quick=False, host=True, note="vmmshare.job.torch_distributed() over gloo; new memory each time"),
    _way("jobs", "vmmshare over a pipe", "Symmetric", "jobs", host=True,
         note="vmmshare.job.AllGather over a pipe; new memory each time"),
    _way("jobs", "vmmshare: cut from one", "SymmetricHeap", "jobs", host=True,
         note="SymmetricMemory.allocate(): memory made once, at the start, over a pipe"),
    _way("jobs", "PyTorch CUDA", "TorchSymmetric", "jobs_others", gpus=2,
         note="empty() and rendezvous() as they are: memory comes back from PyTorch's pool, "
              "which has met already"),
    _way("jobs", "PyTorch CUDA without pool", "TorchSymmetric", "jobs_others", gpus=2,
         environment={"TORCH_SYMMMEM_IMPLICIT_POOL": "0"},
         note="TORCH_SYMMMEM_IMPLICIT_POOL=0; new memory each time"),
    _way("jobs", "PyTorch NVSHMEM", "TorchNvshmem", "jobs_others", quick=False, gpus=2,
         environment={"TORCH_SYMMMEM_IMPLICIT_POOL": "0"},
         note="set_backend(\"NVSHMEM\"), without PyTorch's pool"),
    _way("jobs", "NVSHMEM", "NvshmemHeap", "jobs_others", gpus=2,
         note="nvshmem_malloc; nvshmem_free keeps the memory, so only a first time is of new "
              "memory"),
    _way("ordering", "vmmshare fences", "Fences", "ordering_ways", host=True,
         note="in memory of the host; a barrier is a signal and a wait on each rank"),
    _way("ordering", "vmmshare fence arrays", "FenceArrays", "ordering_ways", host=True,
         note="in symmetric memory, each fence with the rank that waits for it"),
    _way("ordering", "vmmshare fence arrays, kernels", "FenceKernels", "ordering_ways", host=True,
         note="the same, of which streams wait by kernels; a barrier is one kernel: meet()"),
    _way("ordering", "vmmshare ring", "Ring", "ordering_ways", quick=False, host=True,
         note="a buffer a signal, with a message each; the host takes part, no gate"),
    _way("ordering", "stream memory operations", "StreamMemoryOperations", "ordering_ways",
         host=True, note="by hand, on words of vmmshare's SymmetricMemory: the floor"),
    _way("ordering", "NCCL", "Nccl", "ordering_ways", gpus=2,
         note="torch.distributed: all_reduce of one element; send and receive of one"),
    _way("ordering", "PyTorch symmetric memory", "TorchSymmetricBarrier", "ordering_ways",
         gpus=2, note="barrier(), put_signal(), wait_signal()"),
    _way("ordering", "NVSHMEM", "Nvshmem", "ordering_ways", gpus=2,
         note="barrier_all, signal_op and signal_wait_until on a stream"),
]

# What goes wrong, for tests: --plant.
PLANTED = {name: _way("planted", name, name.capitalize(), "planted", host=True)
           for name in ("fail", "hang", "crash", "missing", "orphan", "slow", "environment")}


def chosen(sections, only, quick, plant):
    """The rows that are asked for."""
    ways = [PLANTED[name] for name in plant]
    ways += [way for way in WAYS if way["section"] in sections
             and (way["quick"] or not quick) and (not only or way["name"] in only)]
    return ways


def deadline(way, quick, seconds):
    """Of a row, where all have `seconds`."""
    own = SECONDS[way["section"]][quick]
    return own if way["section"] == "planted" else own * max(1, seconds / ALL[quick])
