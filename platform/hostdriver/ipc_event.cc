#include "platform/hostdriver/ipc_event.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "platform/hostdriver/context.h"

namespace vmm::hostdriver {
namespace {

// What travels in a CUipcEventHandle. Comes back from anywhere: every field is
// checked.
struct WireHandle {
  std::uint64_t magic;
  std::uint64_t file;
  std::uint64_t generation;
  std::uint32_t slot;
  std::uint32_t zero;
};
static_assert(sizeof(WireHandle) <= sizeof(CUipcEventHandle));
constexpr std::uint64_t kMagic = 0x3174766568736d76;  // "vmshevt1"

// The file with this process's slots, and the slots not in use.
struct OwnSlots {
  std::shared_ptr<EventFile> file;
  std::vector<std::uint32_t> free;
};

OwnSlots& Own() {
  static OwnSlots& own = *new OwnSlots;
  return own;
}

}  // namespace

CUresult TakeSlot(State& state, Event* event) {
  OwnSlots& own = Own();
  if (own.file == nullptr) {
    own.file = EventFile::Make(state.config.machine);
    if (own.file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
    for (std::uint32_t i = EventFile::kSlots; i > 0; --i) {
      own.free.push_back(i - 1);
    }
  }
  if (own.free.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
  event->index = own.free.back();
  own.free.pop_back();
  event->file = own.file;
  event->slot = &own.file->slot(event->index);
  event->generation = event->slot->generation.fetch_add(1) + 1;
  return CUDA_SUCCESS;
}

void RemoveOwnEventFile() {
  if (Own().file != nullptr) Own().file->Unlink();
}

void ReleaseSlot(std::uint32_t index) {
  OwnSlots& own = Own();
  EventSlot& slot = own.file->slot(index);
  slot.generation.fetch_add(1);
  slot.completed.store(slot.recorded.load());
  own.free.push_back(index);
  // With the last event goes the file, so that a program that ends tidily
  // leaves nothing in /dev/shm.
  if (own.free.size() == EventFile::kSlots) {
    own.free.clear();
    own.file = nullptr;
  }
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent id) {
  RETURN_IF_FAILED(Enter("cuIpcGetEventHandle"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (handle == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Event& event = *FindEvent(state, "cuIpcGetEventHandle", id);
  if (event.file == nullptr || !event.is_maker)
    return CUDA_ERROR_INVALID_HANDLE;
  const WireHandle wire{kMagic, event.file->id(), event.generation, event.index,
                        0};
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &wire, sizeof(wire));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent* id, CUipcEventHandle handle) {
  RETURN_IF_FAILED(Enter("cuIpcOpenEventHandle"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  WireHandle wire{};
  std::memcpy(&wire, &handle, sizeof(wire));
  if (wire.magic != kMagic || wire.slot >= EventFile::kSlots) {
    return CUDA_ERROR_MAP_FAILED;  // Measured, for a handle of other bytes.
  }
  if (Own().file != nullptr && wire.file == Own().file->id()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  std::shared_ptr<EventFile> file =
      EventFile::Open(state.config.machine, wire.file);
  if (file == nullptr ||
      file->slot(wire.slot).generation.load() != wire.generation) {
    return CUDA_ERROR_MAP_FAILED;
  }
  auto event = std::make_shared<Event>();
  event->context = context;
  event->slot = &file->slot(wire.slot);
  event->file = std::move(file);
  event->index = wire.slot;
  event->generation = wire.generation;
  event->is_maker = false;
  *id = reinterpret_cast<CUevent>(state.NewHandle());
  state.events[*id] = std::move(event);
  return CUDA_SUCCESS;
}
