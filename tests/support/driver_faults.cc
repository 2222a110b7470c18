#include "tests/support/driver_faults.h"

#include <atomic>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/cuda/driver_table.h"
#include "platform/os/process.h"
#include "tests/support/steps.h"

namespace vmm::testing {
namespace {

using platform::Driver;
using platform::DriverEntry;
using platform::DriverTable;

constexpr std::string_view kReleases[] = {
    "cuMemRelease",     "cuMemUnmap",
    "cuMemAddressFree", "cuMemFree",
    "cuMemFreeHost",    "cuMemFreeAsync",
    "cuStreamDestroy",  "cuEventDestroy",
    "cuCtxPopCurrent",  "cuDevicePrimaryCtxRelease",
    "cuModuleUnload",   "cuIpcCloseMemHandle",
};

// A wait that fails has waited all the same: the device is done by then, or its
// context is lost. One that left work behind and a driver in order is not
// CUDA's.
constexpr std::string_view kWaits[] = {
    "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"};

constexpr bool IsWait(std::string_view entry) {
  for (std::string_view wait : kWaits) {
    if (entry == wait) return true;
  }
  return false;
}

constexpr CallKind KindOf(std::string_view entry) {
  for (std::string_view release : kReleases) {
    if (entry == release) return CallKind::kRelease;
  }
  return CallKind::kAcquire;
}

constexpr bool IsErrorText(std::string_view entry) {
  return entry == "cuGetErrorName" || entry == "cuGetErrorString";
}

template <auto Member>
consteval const char* NameOf() {
  const char* name = nullptr;
  platform::ForEachDriverEntry([&name](auto entry) {
    if constexpr (std::is_same_v<decltype(entry), DriverEntry<Member>>) {
      name = entry.name;
    }
  });
  return name;
}

}  // namespace

// The one redirection of this process: plain function pointers carry no state.
class DriverRedirect {
 public:
  static DriverRedirect& Get() {
    static DriverRedirect* const redirect = new DriverRedirect;
    return *redirect;
  }

  Driver Start(const Driver& real, DriverFaults* faults) {
    std::shared_ptr<void> user = user_.lock();
    if (user == nullptr) {
      real_ = real;
      table_ = real.table();
      user = std::make_shared<int>(0);
      user_ = user;
    }
    platform::Check(*real_ == real,
                    "FaultyDriver: one of another real driver is still in use");
    faults->real_ = real;
    // Loading calls cuInit and cuDriverGetVersion: not counted.
    faults_ = nullptr;
    absl::StatusOr<Driver> driver = Driver::LoadFromLookup(
        absl::StrCat("fault injection before ", real.Describe()),
        [user, host = real.is_host_memory()](std::string_view symbol) {
          return Find(symbol, host);
        });
    if (!driver.ok()) platform::Die(driver.status().ToString());
    faults_ = faults;
    return *std::move(driver);
  }

  void Stop(DriverFaults* faults) {
    faults_.compare_exchange_strong(faults, nullptr);
  }

  template <auto Member, typename... Args>
  CUresult Call(Args... args) {
    constexpr const char* kName = NameOf<Member>();
    DriverFaults* faults = faults_.load();
    if (faults == nullptr || IsErrorText(kName)) {
      return (table_.*Member)(args...);
    }
    const internal::Step step(kName, internal::StepKind::kDriverCall);
    const DriverFaults::Decision decision =
        faults->Decide(kName, KindOf(kName));
    CUresult result = CUDA_SUCCESS;
    if (decision.perform || IsWait(kName)) result = (table_.*Member)(args...);
    // A release that the driver itself refused stays refused.
    if (result != CUDA_SUCCESS) return result;
    return decision.answer.value_or(result);
  }

 private:
  template <auto Member, typename Pointer>
  struct Thunk;
  template <auto Member, typename... Args>
  struct Thunk<Member, CUresult(CUDAAPI*)(Args...)> {
    static CUresult CUDAAPI Call(Args... args) {
      return Get().Call<Member, Args...>(args...);
    }
  };

  // Answers what Driver asks a library for.
  static void* Find(std::string_view symbol, bool host_memory) {
    if (symbol == "cuGetProcAddress_v2") {
      return reinterpret_cast<void*>(&GetAddress);
    }
    // Its presence alone marks the host-memory driver.
    if (symbol == "vmmshareHostDriverVersion" && host_memory) {
      static int mark = 0;
      return &mark;
    }
    return nullptr;
  }

  static CUresult CUDAAPI GetAddress(const char* symbol, void** address,
                                     int version, cuuint64_t,
                                     CUdriverProcAddressQueryResult*) {
    *address = nullptr;
    int best = 0;
    const DriverTable& real = Get().table_;
    platform::ForEachDriverEntry([&](auto entry) {
      constexpr auto kMember = decltype(entry)::kMember;
      // One name stands for several signatures: the newest that is not newer
      // than `version` is meant, as the driver itself chooses.
      if (std::string_view(symbol) != entry.name || entry.version > version ||
          entry.version < best) {
        return;
      }
      best = entry.version;
      using Pointer = std::remove_cvref_t<decltype(real.*kMember)>;
      *address = real.*kMember == nullptr
                     ? nullptr
                     : reinterpret_cast<void*>(&Thunk<kMember, Pointer>::Call);
    });
    return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  }

  std::optional<Driver> real_;
  DriverTable table_;
  std::weak_ptr<void> user_;  // Expires with the last copy of the driver.
  std::atomic<DriverFaults*> faults_ = nullptr;
};

Driver FaultyDriver(const Driver& real, DriverFaults* faults) {
  return DriverRedirect::Get().Start(real, faults);
}

CallKind KindOfDriverCall(const std::string& entry) { return KindOf(entry); }

DriverFaults::~DriverFaults() { DriverRedirect::Get().Stop(this); }

void DriverFaults::Arm(const DriverFault& fault) {
  platform::Check(fault.result != CUDA_SUCCESS || fault.then != nullptr,
                  "DriverFault.result must be an error, or `then` be given");
  const std::lock_guard lock(mutex_);
  fault_ = fault;
  process_ = platform::CurrentProcessId();
  failed_.clear();
  trigger_.Arm(fault.point);
}

DriverFaults::Outcome DriverFaults::Disarm() {
  const std::lock_guard lock(mutex_);
  if (!trigger_.armed()) return {};
  trigger_.Disarm();
  return {trigger_.counted(), trigger_.fired(), std::move(failed_)};
}

std::uint64_t DriverFaults::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

std::map<std::string, std::uint64_t> DriverFaults::CallsByEntry() const {
  const std::lock_guard lock(mutex_);
  return calls_by_entry_;
}

void DriverFaults::ResetCounts() {
  const std::lock_guard lock(mutex_);
  calls_ = 0;
  calls_by_entry_.clear();
}

const Driver& DriverFaults::real() const {
  platform::Check(real_.has_value(),
                  "DriverFaults::real() before FaultyDriver");
  return *real_;
}

DriverFaults::Decision DriverFaults::Decide(const char* entry, CallKind kind) {
  Decision decision;
  std::function<void()> then;
  {
    const std::lock_guard lock(mutex_);
    ++calls_;
    ++calls_by_entry_[entry];
    const bool any = fault_.calls == CallKind::kAny;
    const bool chosen = fault_.entry.empty() ? any || fault_.calls == kind
                                             : fault_.entry == entry;
    if (!trigger_.armed() || !chosen ||
        process_ != platform::CurrentProcessId() || !trigger_.Count()) {
      return {};
    }
    failed_.emplace_back(entry);
    const bool gives_back = kind == CallKind::kRelease;
    decision.perform = fault_.effect == FaultEffect::kPerformedButReported &&
                       (gives_back || !any);
    decision.answer = any && gives_back ? fault_.release_result : fault_.result;
    if (trigger_.fired() == 1) then = fault_.then;
  }
  if (then) then();
  return decision.answer == CUDA_SUCCESS ? Decision() : decision;
}

}  // namespace vmm::testing
