// Everything the driver knows of this process, under one lock.
//
// One lock for all, because this is a model: what must be right is the order
// and the answer of calls. Copies run without it.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_STATE_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_STATE_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "platform/hostdriver/config.h"
#include "platform/hostdriver/cuda_api.h"
#include "platform/hostdriver/memory_os.h"

namespace vmm::hostdriver {

struct Capture;
struct Event;
struct Function;
struct Pool;
struct Segment;
struct Stream;

struct State;

using Lock = std::unique_lock<std::mutex>;

// One piece of work in a stream. Called with the lock held and returns so; may
// let go of it meanwhile. A result other than CUDA_SUCCESS becomes the
// context's sticky error.
using Work = std::function<CUresult(State&, Lock&)>;

// What a capture became, or what was made of it to be launched.
struct Graph {
  std::vector<Work> work;
  // Where it was last launched, and how much that stream had to do then.
  std::shared_ptr<Stream> last_stream;
  std::uint64_t last_count = 0;
};

// A primary context, from its first retain to its last release or a reset, or one
// that a program made, until it is destroyed.
struct Context {
  CUcontext id = nullptr;
  int device = 0;  // Visible ordinal.
  bool primary = true;
  std::set<CUcontext> peers;  // Those it enabled access to.
  bool destroyed = false;
  CUresult error = CUDA_SUCCESS;  // Sticky, once a fault occurred.
  std::uint64_t submitted = 0;    // Operations, to all of its streams.
  // Those that wait in its queues, and in those of copies to the host: their numbers.
  std::array<std::set<std::uint64_t>, 2> waits;
  std::shared_ptr<Stream>
      default_stream;  // The NULL stream; made on first use.
};

// What is known of a device's primary context, also while there is none.
struct Primary {
  // Measured: one that is retained anew has its old handle. Null before the first.
  CUcontext id = nullptr;
  int retains = 0;                   // Releases still owed, also after a reset.
  std::shared_ptr<Context> context;  // Null while there is none.
};

// All of a memory object, mapped for the driver's own reads and writes.
class Shadow {
 public:
  Shadow(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  ~Shadow() { UnmapWhole(data_, size_); }
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  std::size_t size_;
};

// Physical memory, as long as a handle, a mapping or a block refers to it.
inline unsigned long long NewBlockId() {
  static std::atomic<unsigned long long> last = 0;
  return ++last;
}

struct Memory {
  ~Memory() { CloseMemory(os); }

  CUmemGenericAllocationHandle handle = 0;
  OsMemory os = -1;
  std::size_t size = 0;
  MemoryLabel label;
  CUmemLocation location{};  // id -2: a device this process does not see.
  int physical = -1;         // The device's number; -1 for host or unknown.
  unsigned long long handle_types = 0;  // 0 for imported memory.
  bool imported = false;
  std::uint64_t buffer_id = 0;
  // Another one for each memory, of whatever kind.
  const unsigned long long block_id = NewBlockId();
  int references = 0;  // Releases still owed.
  int mappings = 0;
  std::shared_ptr<Shadow> shadow;  // Made on first use.
};

using AccessByDevice = std::map<int, CUmemAccess_flags>;  // Visible ordinals.

struct Mapping {
  std::shared_ptr<Memory> memory;
  AccessByDevice access;
  CpuAccess cpu = CpuAccess::kNone;
};

// cuMemAlloc, cuMemHostAlloc, cuMemAllocManaged, cuIpcOpenMemHandle, or memory of
// a pool.
struct Block {
  std::size_t size = 0;      // As asked for.
  std::size_t reserved = 0;  // Of addresses.
  bool on_host = false;      // At addresses of the CPU's.
  bool is_managed = false;   // And so told to be a device's.
  std::shared_ptr<Memory> memory;
  std::size_t offset = 0;            // In the memory.
  std::shared_ptr<Context> context;  // Null for memory of a pool.
  std::shared_ptr<Pool> pool;        // Null for other memory.
  std::uint64_t buffer_id = 0;
  int opens = 0;  // Closes still owed for cuIpcOpenMemHandle; 0 if not opened.
};

struct State {
  std::mutex mu;
  std::condition_variable progress;  // Any change a worker may wait for.

  Config config;
  std::vector<int> visible;  // Physical number by ordinal.

  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Memory>> memories;
  std::map<CUdeviceptr, std::size_t> reservations;           // Size by start.
  std::map<CUdeviceptr, Mapping> mappings;                   // By start.
  std::map<CUdeviceptr, Block> blocks;                       // By start.
  std::map<CUdeviceptr, std::shared_ptr<Segment>> segments;  // By start.
  std::map<CUmemoryPool, std::shared_ptr<Pool>> pools;  // Default ones too.
  std::map<int, std::shared_ptr<Pool>> default_pools;   // By ordinal.
  std::map<int, std::shared_ptr<Pool>> current_pools;   // Where set.
  std::map<CUcontext, std::shared_ptr<Context>> contexts;
  std::map<int, Primary> primaries;  // By ordinal.
  // The devices of those that were made, destroyed ones too.
  std::map<CUcontext, int> made_contexts;
  std::map<CUmodule, std::shared_ptr<Context>> modules;
  std::map<CUfunction, std::shared_ptr<const Function>> functions;
  std::map<CUlibrary, bool> libraries;  // Whether they hold GPU code.
  std::unordered_map<CUstream, std::shared_ptr<Stream>> streams;  // Thousands.
  std::vector<std::shared_ptr<Stream>> draining;  // Destroyed, still at work.
  std::map<CUevent, std::shared_ptr<Event>> events;
  std::vector<std::shared_ptr<Capture>> captures;  // Under way.
  // By handle; those that can be launched too.
  std::map<std::uint64_t, Graph> graphs;

  int workers = 0;        // Threads that run streams.
  bool stopping = false;  // The process exits.
  // Handles count up and never repeat, so a stale one is never taken for a
  // live one.
  std::uint64_t next_handle = 0x76000000'00001000;
  std::uint64_t next_buffer_id = 1;

  // Whether the process sees a device with this ordinal.
  bool IsDevice(int ordinal) const {
    return ordinal >= 0 && ordinal < static_cast<int>(visible.size());
  }
  // The number of the instance's device with this UUID; -1 if it has none.
  int PhysicalOf(const Uuid& uuid) const;
  // The ordinal of the device with this number; -2, as measured, if it is hidden
  // from this process or `physical` is none.
  int OrdinalOf(int physical) const;

  std::uint64_t NewHandle() { return next_handle += 16; }
  // Whether this driver gave out `handle` at some time.
  bool WasIssued(std::uint64_t handle) const {
    return handle > 0x76000000'00001000 && handle <= next_handle &&
           handle % 16 == 0;
  }
};

// Never destroyed: worker threads may outlive static destruction.
State& GetState();

// Begins a call of the entry `name`: counts it, and answers what it must
// answer at once, if so: an injected failure, or that there is no driver
// (before cuInit, after fork in the child, during exit).
CUresult Enter(const char* name);

// A step that may fail, in one line: returns the result of `expression` from the
// enclosing function unless it is CUDA_SUCCESS. `expression` is evaluated once.
#define RETURN_IF_FAILED(expression)                               \
  do {                                                             \
    const CUresult vmmshare_failed_ = (expression);                \
    if (vmmshare_failed_ != CUDA_SUCCESS) return vmmshare_failed_; \
  } while (false)

// Where the driver stands.
enum class Phase { kNew, kReady, kForked, kExiting };
Phase CurrentPhase();
void SetPhase(Phase phase);

// Marks the thread as running a host function: driver calls are not permitted.
void SetInHostFunction(bool in_host_function);

// The text for a handle that must be live and is not: released before, or
// never issued.
[[noreturn]] void StopOnHandle(const State& state, const char* call,
                               const char* what, std::uint64_t handle);

// What `id` names in `live`; stops if that is nothing.
template <typename Map>
const typename Map::mapped_type& FindOrStop(const State& state,
                                            const char* call, const char* what,
                                            const Map& live,
                                            typename Map::key_type id) {
  const auto found = live.find(id);
  if (found == live.end()) {
    StopOnHandle(state, call, what, reinterpret_cast<std::uint64_t>(id));
  }
  return found->second;
}

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_STATE_H_
