"""Tests of your own sharing code on machines without a GPU.

The host-memory driver implements the CUDA driver's calls on host memory, across processes,
with its error codes. In conftest.py:

    pytest_plugins = ["vmmshare.testing"]

and a test that takes the fixture `vmmshare_host_driver` runs on it, with memory of a NUMA
node of the host, which NumPy can look at: `vs.Pool(host_node=0)`. Its device memory cannot
be read by the CPU, as on a GPU. Child processes call use_host_driver() themselves.
"""

import os
import pathlib
import uuid

from . import Driver, set_driver

__all__ = ["host_driver", "use_host_driver"]

INSTANCE = "VMMSHARE_HOST_INSTANCE"


def host_driver() -> str:
    """The path of the host-memory driver, which comes with this package."""
    return str(pathlib.Path(__file__).resolve().parent / "lib" / "libvmmshare_hostdriver.so")


def use_host_driver() -> Driver:
    """Makes the host-memory driver this process's.

    Once a process: the driver that a process uses first stays loaded. Its machine is that of all
    processes of the user with the same VMMSHARE_HOST_INSTANCE in the environment, or with none.
    """
    driver = Driver(host_driver())
    set_driver(driver)
    return driver


try:
    import pytest
except ImportError:  # Only the fixture needs it.
    pass
else:

    @pytest.fixture(scope="session")
    def vmmshare_host_driver() -> Driver:
        """The host-memory driver, as the driver of this process, on a machine of its own and its
        children's, unless the environment names one."""
        os.environ.setdefault(INSTANCE, "py-" + uuid.uuid4().hex[:12])
        return use_host_driver()
