// Storage: memory that arrays are views of, given back when the last of them
// and the last consumer of a DLPack capsule have gone.
//
// Its destructor runs on any thread, with the GIL or without, in a forked child
// and at the interpreter's end: it calls nothing of Python.
#ifndef VMMSHARE_VMM_PYTHON_CORE_STORAGE_H_
#define VMMSHARE_VMM_PYTHON_CORE_STORAGE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "vmm/c/vmmshare.h"
#include "vmm/python/core/dlpack_abi.h"
#include "vmm/python/core/forked.h"

namespace vmm::python {

// Where memory is and who may write it.
struct Place {
  DLDevice device{kDLCPU, 0};
  bool readonly = false;
};
// On the host, or on the device of this ordinal.
inline Place PlaceOf(bool on_host, int device, bool readonly) {
  return {{on_host ? kDLCPU : kDLCUDA, on_host ? 0 : device}, readonly};
}

// A stream, and how many had been released when it was used.
struct StreamUse {
  static StreamUse Now(void* stream);
  // What goes back after none goes back on the legacy stream, which needs no
  // context.
  static StreamUse OfNone();
  void* stream = nullptr;
  std::uint64_t at = 0;
  // Null when it was released since, and may be destroyed.
  void* Current() const;
};

// The GPU has passed all work on `stream`, which nobody uses any more until it
// is another one.
void StreamWasReleased(void* stream);

class Storage {
 public:
  Storage(std::uint64_t first, std::uint64_t bytes, Place where)
      : address(first), size(bytes), place(where) {}
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  const std::uint64_t address;
  const std::uint64_t size;
  // Null but for whole memory.
  virtual const vmmshare_memory* memory() const { return nullptr; }
  // Where work on it may be under way; null where nobody said so, or that stream
  // was released since. Of whole memory too: nobody has to keep its streams until
  // it goes.
  virtual void* stream() const { return nullptr; }
  // Raises while its addresses are kept and nothing is there: nobody may take it.
  virtual void CheckIsThere() const {}

  const MadeHere made;
  Place place;  // Known, and not changed, once anybody else has it.

  // Whoever is given the memory works on it on `stream`, which is made to come
  // after those who had it before; raises when that fails, with nothing changed. It
  // goes back after what is on `stream` then, not before: of several streams, the
  // last one that said so. Needs the GIL.
  void UseOn(void* stream);
  // The same of who does not say on which stream, and has that come after the
  // legacy default stream.
  void UseOnUnsaid();

 protected:
  StreamUse last_use() const { return {last_stream_, used_at_}; }
  void UsedOn(void* stream);

 private:
  // Makes `stream` come after who had the memory before.
  virtual void ComeAfterTheLast(void* /*stream*/, bool /*is_unsaid*/) {}

  std::atomic<void*> last_stream_ = nullptr;
  std::atomic<std::uint64_t> used_at_ = 0;
};

// A block of this process's pool, allocated on `stream`.
class PoolBlock final : public Storage {
 public:
  PoolBlock(std::shared_ptr<vmmshare_pool> from, std::uint64_t first,
            std::uint64_t bytes, Place where, void* stream)
      : Storage(first, bytes, where), pool(std::move(from)) {
    UsedOn(stream);
  }
  ~PoolBlock() override;

  void* stream() const override { return last_use().Current(); }

  const std::shared_ptr<vmmshare_pool> pool;

 private:
  void ComeAfterTheLast(void* stream, bool is_unsaid) override;

  // Its first consumer's stream comes after those who had the memory before: who
  // hands it on from there has that order. Until then that of its last use does.
  std::atomic<bool> is_ordered_ = false;
};

// A block of another process.
class ImportedBlock final : public Storage {
 public:
  // Takes over `block`, of `pool`. Its place is to be set.
  ImportedBlock(vmmshare_block* block,
                std::shared_ptr<vmmshare_imported_pool> pool)
      : Storage(vmmshare_block_address(block), vmmshare_block_size(block), {}),
        pool_(std::move(pool)),
        block_(block) {}
  ~ImportedBlock() override;

  void* stream() const override { return last_use().Current(); }

 private:
  // Goes after the block, which keeps what the handle stands for as well: so the
  // handle's deleter says on which thread that ends.
  const std::shared_ptr<vmmshare_imported_pool> pool_;
  vmmshare_block* const block_;
};

// Whole memory, which its own handle keeps.
class WholeMemory final : public Storage {
 public:
  WholeMemory(std::shared_ptr<vmmshare_memory> memory, Place where)
      : Storage(vmmshare_memory_address(memory.get()),
                vmmshare_memory_requested_size(memory.get()), where),
        memory_(std::move(memory)) {}

  const vmmshare_memory* memory() const override { return memory_.get(); }

 private:
  const std::shared_ptr<vmmshare_memory> memory_;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_STORAGE_H_
