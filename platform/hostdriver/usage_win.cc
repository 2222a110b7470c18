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
    // If its last holder died, it counted nothing that is not in the names.
    if (mutex_ != nullptr) WaitForSingleObject(mutex_, INFINITE);
  }
  ~InstanceLock() {
    if (mutex_ == nullptr) return;
    ReleaseMutex(mutex_);
    CloseHandle(mutex_);
  }
  InstanceLock(const InstanceLock&) = delete;
  InstanceLock& operator=(const InstanceLock&) = delete;

  bool held() const { return mutex_ != nullptr; }
  std::wstring folder() const {
    const std::wstring name =
        NameOfHandle(reinterpret_cast<std::intptr_t>(mutex_));
    const std::size_t end = name.rfind(L'\\');
    return end == std::wstring::npos ? L"" : name.substr(0, end);
  }

 private:
  HANDLE mutex_;
};

std::uint64_t CountHeld(const InstanceLock& lock, const std::string& instance,
                        const Uuid& uuid) {
  // Device and block memory differ in what follows this common part only.
  const std::string label = "vmmhost1." + instance + "." + UuidHex(uuid) + ".";
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

// Names go with what they name; nothing is left to remove.
void JoinInstance(const std::string&) {}
void LeaveInstance() {}

std::uint64_t BytesHeld(const std::string& instance, const Uuid& uuid) {
  const InstanceLock lock(instance);
  return CountHeld(lock, instance, uuid);
}

std::optional<OsMemory> CreateWithinBudget(const MemoryLabel& label,
                                           std::size_t size, int,
                                           std::uint64_t budget,
                                           bool* over_budget) {
  *over_budget = size > budget;
  if (*over_budget) return std::nullopt;
  // Held until the memory exists, so that nobody counts in between.
  const InstanceLock lock(label.instance);
  if (!lock.held()) return std::nullopt;
  *over_budget = CountHeld(lock, label.instance, label.uuid) > budget - size;
  if (*over_budget) return std::nullopt;
  return CreateMemory(label, size);
}

}  // namespace vmm::hostdriver
