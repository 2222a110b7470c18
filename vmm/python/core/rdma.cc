#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "vmm/python/core/handles.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// (whether it can be registered, why not): vmmshare_memory_rdma() of an Allocation,
// vmmshare_pool_rdma() of a Pool.
template <auto rdma, typename Memory>
nb::tuple Rdma(const Memory& self) {
  const auto memory = self.handle.shared();
  int capable = 0;
  const std::string refusal =
      MadeText([&](vmmshare_text** made, vmmshare_error** error) {
        return rdma(memory.get(), &capable, made, error);
      });
  return nb::make_tuple(capable != 0, refusal);
}

// [(descriptor, offset, bytes)]; the descriptors are the caller's.
nb::list ListOf(const std::vector<vmmshare_dma_buf>& bufs,
                std::uint32_t count) {
  nb::list made;
  for (std::uint32_t i = 0; i < count; ++i) {
    made.append(
        nb::make_tuple(bufs[i].descriptor, bufs[i].offset, bufs[i].size));
  }
  return made;
}

std::uint32_t FlagsOf(bool pcie) { return pcie ? VMMSHARE_DMA_BUF_PCIE : 0; }

nb::list DmaBufs(const Allocation& self, std::uint64_t offset,
                 std::uint64_t nbytes, bool pcie) {
  const auto memory = self.handle.shared();
  std::vector<vmmshare_dma_buf> bufs(vmmshare_memory_chunks(memory.get()) + 1);
  std::uint32_t count = 0;
  Must([&](vmmshare_error** error) {
    return vmmshare_memory_dma_bufs(
        memory.get(), offset, nbytes, FlagsOf(pcie), bufs.data(),
        static_cast<std::uint32_t>(bufs.size()), &count, error);
  });
  return ListOf(bufs, count);
}

nb::list DmaBufsAt(std::uint64_t address, std::uint64_t nbytes, bool pcie) {
  const auto driver = DefaultDriver();
  std::vector<vmmshare_dma_buf> bufs(16);
  std::uint32_t count = 0;
  const auto made = [&](vmmshare_error** error) {
    return vmmshare_dma_bufs(
        driver.get(), address, nbytes, FlagsOf(pcie), bufs.data(),
        static_cast<std::uint32_t>(bufs.size()), &count, error);
  };
  // How many chunks there are is known when there is too little room.
  if (made(nullptr) != VMMSHARE_OK) {
    bufs.resize(std::max<std::size_t>(bufs.size(), count));
    Must(made);
  }
  return ListOf(bufs, count);
}

}  // namespace

void DefineRdma(nb::module_& module) {
  module.def("_rdma", &Rdma<&vmmshare_memory_rdma, Allocation>,
             nb::arg("memory"));
  module.def("_rdma", &Rdma<&vmmshare_pool_rdma, Pool>, nb::arg("memory"));
  module.def("_dma_bufs", &DmaBufs, nb::arg("memory"), nb::arg("offset"),
             nb::arg("nbytes"), nb::arg("pcie"));
  module.def("_dma_bufs_at", &DmaBufsAt, nb::arg("address"), nb::arg("nbytes"),
             nb::arg("pcie"));
}

}  // namespace vmm::python
