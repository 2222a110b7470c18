"""A memory saver of the shape of torch_memory_saver's, over regions of vmmshare.

What is allocated within region() gives its memory back to the device by pause(), and has it again
at the same addresses by resume(): tensors, pointers and captured graphs stay good. Memory can be
backed up on the host meanwhile; without that, its contents are lost.

Written from the signatures alone: it has not run within SGLang. tests/python/test_seats.py runs it
with a stand-in of the caller and of PyTorch.
"""

import contextlib

import torch

import vmmshare.torch


class RegionMemorySaver:
    """One thread at a time. What has paused memory in use, work on the GPU too, ends its process's
    context."""

    enabled = True

    def __init__(self):
        self._regions = {}  # By tag, whether it is backed up, and device.

    @contextlib.contextmanager
    def region(self, tag="default", enable_cpu_backup=False):
        """Within it, tensors made on the current device have `tag`. FailedPrecondition within
        another one, and while the tag is paused."""
        key = tag, enable_cpu_backup, torch.cuda.current_device()
        if key not in self._regions:
            self._regions[key] = vmmshare.torch.Region(key[2])
        with self._regions[key].use():
            yield

    def pause(self, tag=None):
        """Gives the memory of `tag` back, or of all tags; what is paused stays so. All or nothing:
        when the host lacks memory for a backup, what this call has paused is resumed."""
        with contextlib.ExitStack() as undo:
            # Those that are backed up first: they may fail, and lose nothing by being resumed.
            for region, backup in sorted(self._of(tag), key=lambda one: not one[1]):
                if not region.released:
                    region.release(keep=backup)
                    undo.callback(region.restore)
            undo.pop_all()

    def resume(self, tag=None):
        """Brings the memory of `tag` back, or of all tags. All or nothing: when the device lacks
        memory for one region, what this call has resumed is paused again, with its contents if
        it was backed up."""
        with contextlib.ExitStack() as undo:
            for region, backup in self._of(tag):
                if region.released:
                    region.restore()
                    undo.callback(region.release, keep=backup)
            undo.pop_all()

    def _of(self, tag):
        """Its regions, and whether each is backed up. None for a tag that nothing has."""
        return [(region, backup) for (its, backup, _), region in self._regions.items()
                if tag in (None, its)]
