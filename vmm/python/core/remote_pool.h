// RemotePool: the pool of another process, as a class of the module.
#ifndef VMMSHARE_VMM_PYTHON_CORE_REMOTE_POOL_H_
#define VMMSHARE_VMM_PYTHON_CORE_REMOTE_POOL_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "vmm/python/core/handles.h"
#include "vmm/python/core/layout.h"
#include "vmm/python/core/storage.h"

namespace vmm::python {

// The GIL guards it.
class RemotePool {
 public:
  RemotePool(std::shared_ptr<vmmshare_driver> driver,
             std::shared_ptr<vmmshare_imported_pool> pool, bool writable,
             int opened_for)
      : handle(std::move(pool)),
        driver_(std::move(driver)),
        writable_(writable),
        opened_for_(opened_for) {}

  Holder<vmmshare_imported_pool> handle;
  bool writable() const { return writable_; }

  // The blocks of `count` tickets, one after the other. All or nothing.
  std::vector<std::shared_ptr<Storage>> Import(const std::uint8_t* tickets,
                                               std::size_t count,
                                               std::int64_t timeout_ns);

 private:
  // Where `address` lives; asked of the driver once for a range of a device's.
  // Not the ticket's word: what a peer calls host memory and is none would end
  // this process at its first access. So that is asked for each time: the driver
  // answers a range that is reserved, and the peer lays out what is there.
  Located Where(std::uint64_t address);

  const std::shared_ptr<vmmshare_driver> driver_;
  const bool writable_;
  const int opened_for_;                      // As of Locate().
  std::map<std::uint64_t, Located> located_;  // By where a range begins.
};

// Raises for a ticket or a set that cannot be read.
[[noreturn]] void RefuseTicket(const Refusal& refusal);
// The same unless every element of `layout` lies within the block.
void CheckFits(const Layout& layout, const Storage& storage);

// Many arrays at once: open_all(), and what vmmshare.torch stands on.
void DefineSets(nanobind::module_& module,
                nanobind::class_<RemotePool>& remote_pool);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_REMOTE_POOL_H_
