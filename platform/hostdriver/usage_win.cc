// Counts what processes hold, from the names of the sections that exist: the
// kernel's own record, so a killed process's memory is back at once and
// nothing can leak a count. A name carries its section's size.
#include <windows.h>

#include <cstdlib>

#include "platform/hostdriver/memory_os.h"
#include "platform/hostdriver/object_names_win.h"

namespace vmm::hostdriver {
namespace {

// One lock for all processes of an instance, held while memory is counted and
// made. Its own name tells in which folder the names are.
class InstanceLock {
 public:
  explicit InstanceLock(const std::string& instance)
      : mutex_(CreateMutexW(nullptr, FALSE,
                            LocalName("vmmhost1-lock." + instance).c_str())) {
    if (mutex_ == nullptr) return;
    // If its last holder died, it counted nothing that is not in the names.
    const DWORD waited = WaitForSingleObject(
        mutex_,
        static_cast<DWORD>(std::chrono::milliseconds(kLockPatience).count()));
    held_ = waited == WAIT_OBJECT_0 || waited == WAIT_ABANDONED;
    timed_out_ = waited == WAIT_TIMEOUT;
  }
  ~InstanceLock() {
    if (held_) ReleaseMutex(mutex_);
    if (mutex_ != nullptr) CloseHandle(mutex_);
  }
  InstanceLock(const InstanceLock&) = delete;
  InstanceLock& operator=(const InstanceLock&) = delete;

  bool held() const { return held_; }
  bool timed_out() const { return timed_out_; }
  std::wstring folder() const {
    const std::wstring name =
        NameOfHandle(reinterpret_cast<std::intptr_t>(mutex_));
    const std::size_t end = name.rfind(L'\\');
    return end == std::wstring::npos ? L"" : name.substr(0, end);
  }

 private:
  HANDLE mutex_;
  bool held_ = false;
  bool timed_out_ = false;
};

// Upper bounds of the bytes held of each device, in a section that the
// instance's processes share: everybody adds to a bound before it creates
// memory, nobody subtracts, and where a bound does not do it is replaced by the
// exact count. Reading all names takes wine a call to its server for each.
// Used with the lock held. A slot has 0 while its bound is not known, so also
// where the section is new though memory of processes that have gone is not.
class Bounds {
 public:
  static void Open(const std::string& instance) {
    const HANDLE section =
        CreateFileMappingW(INVALID_HANDLE_VALUE, nullptr, PAGE_READWRITE, 0,
                           kSlots * sizeof(std::uint64_t),
                           LocalName("vmmhost1-bounds." + instance).c_str());
    if (section == nullptr) return;
    slots_ = static_cast<std::uint64_t*>(
        MapViewOfFile(section, FILE_MAP_READ | FILE_MAP_WRITE, 0, 0, 0));
    CloseHandle(section);  // The view keeps it.
  }
  static std::optional<std::uint64_t> Read(int slot) {
    if (slots_ == nullptr || slot >= kSlots || slots_[slot] == 0) return {};
    return slots_[slot] - 1;
  }
  static void Write(int slot, std::uint64_t bound) {
    if (slots_ != nullptr && slot < kSlots) slots_[slot] = bound + 1;
  }

 private:
  static constexpr int kSlots = 512;
  static inline std::uint64_t* slots_ = nullptr;
};

std::uint64_t CountHeld(const InstanceLock& lock, const std::string& instance,
                        const Uuid& uuid) {
  const std::string label = LabelPrefix(instance, uuid);
  std::uint64_t sum = 0;
  for (const std::string& name : SectionsIn(lock.folder())) {
    if (name.substr(0, label.size()) != label ||
        name[label.size()] == static_cast<char>(MemoryLabel::Kind::kPool)) {
      continue;
    }
    const std::size_t end = name.rfind('.');
    const std::size_t begin = name.rfind('.', end - 1);
    sum += std::strtoull(name.substr(begin + 1).c_str(), nullptr, 16);
  }
  return sum;
}

}  // namespace

bool JoinInstance(const std::string& instance) {
  Bounds::Open(instance);
  return true;
}
// Names go with what they name; nothing is left to remove.
void LeaveInstance() {}

std::uint64_t BytesHeld(const std::string& instance, const Uuid& uuid) {
  const InstanceLock lock(instance);
  return CountHeld(lock, instance, uuid);
}

std::optional<OsMemory> CreateWithinBudget(const MemoryLabel& label,
                                           std::size_t size, int slot,
                                           std::uint64_t budget,
                                           NotCreated* why) {
  *why = NotCreated::kOverBudget;
  if (size > budget) return std::nullopt;
  // Held until the memory exists, so that nobody counts in between.
  const InstanceLock lock(label.instance);
  if (!lock.held()) {
    *why =
        lock.timed_out() ? NotCreated::kLockNotHad : NotCreated::kNoSystemCall;
    return std::nullopt;
  }
  std::optional<std::uint64_t> bound = Bounds::Read(slot);
  if (!bound || *bound > budget - size) {
    bound = CountHeld(lock, label.instance, label.uuid);
    Bounds::Write(slot, *bound);
    if (*bound > budget - size) return std::nullopt;
  }
  Bounds::Write(slot, *bound + size);
  *why = NotCreated::kNoSystemCall;
  return CreateMemory(label, size);
}

}  // namespace vmm::hostdriver
