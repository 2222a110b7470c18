// How pools are closed by who uses them last: an array, say, or what was made of
// one. It may hold the GIL, and the GPU may not have done with the memory.
#ifndef VMMSHARE_VMM_PYTHON_CORE_POOL_CLOSERS_H_
#define VMMSHARE_VMM_PYTHON_CORE_POOL_CLOSERS_H_

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "vmm/c/vmmshare.h"
#include "vmm/python/core/forked.h"
#include "vmm/python/core/storage.h"

namespace vmm::python {

// The deleter of a pool of this process. Its memory goes once the GPU has passed
// what is on the streams that blocks went back on: at once where it has, else on
// a thread that waits for it. Where the interpreter ends first it stays.
class PoolCloser {
 public:
  PoolCloser() : streams_(std::make_shared<Streams>()) {}

  void operator()(vmmshare_pool* pool) const;

  // A block of `pool` goes back after `use`. REQUIRES: a PoolCloser closes it.
  static void GoesBackAfter(const std::shared_ptr<vmmshare_pool>& pool,
                            StreamUse use);
  // Whether `stream` needs not be kept for `pool` any more, which asks the driver after
  // it until then: the GPU has passed what went back on it before this, that will
  // never be known, or the interpreter ends. Waits for nothing. REQUIRES: as above.
  static bool Forget(const std::shared_ptr<vmmshare_pool>& pool, void* stream);

 private:
  class Streams {
   public:
    void Add(StreamUse use);
    // Not in place of a later one.
    void PutBack(StreamUse use);
    std::optional<StreamUse> Take(void* stream);
    // Those that were not released since.
    std::vector<StreamUse> Take();

   private:
    std::mutex mutex_;
    std::map<void*, StreamUse> last_;
  };

  std::shared_ptr<Streams> streams_;
  MadeHere made_;
};

// The deleter of a pool of another process. To close it is to wait for the
// pool's threads and its owner: that is done here where the GIL is known not to be
// held, and else on a thread of its own.
class ImportedPoolCloser {
 public:
  void operator()(vmmshare_imported_pool* pool) const;

 private:
  MadeHere made_;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_POOL_CLOSERS_H_
