#include "vmm/c/symmetric.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fabric/exchange.h"
#include "platform/base/status_macros.h"
#include "platform/os/deadline.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/job/symmetric.h"
#include "vmm/memory/device.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;

struct vmmshare_symmetric : vmm::c::Handle<vmm::c::HandleType::kSymmetric> {
  explicit vmmshare_symmetric(vmm::job::SymmetricMemory made)
      : memory(std::move(made)), heap(memory.size()) {}
  const vmm::job::SymmetricMemory memory;
  vmm::job::SymmetricHeap heap;
};

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 24;

// VMMSHARE_FOREVER for one that never passes.
std::int64_t LeftUntil(vmm::Deadline deadline) {
  return absl::ToInt64Nanoseconds(deadline.Left());
}

template <typename Function>
absl::Status CallExchange(absl::string_view function, absl::string_view key,
                          const Function& call) {
  return vmm::c::CallOwn(absl::StrCat("exchange: ", function, "(", key, ")"),
                         call);
}

// What `rank` put as `key`, however long it is: with more room where `get` says so.
absl::StatusOr<vmm::fabric::Bytes> Get(const vmmshare_exchange& given, int rank,
                                       const std::string& key,
                                       vmm::Deadline deadline) {
  vmm::fabric::Bytes value(4096);
  for (bool is_first = true;; is_first = false) {
    std::uint64_t size = 0;
    RETURN_IF_ERROR(CallExchange("get", key, [&] {
      return given.get(given.user, rank, key.c_str(), value.data(),
                       value.size(), &size, LeftUntil(deadline));
    }));
    const bool all = size <= value.size();
    if (size > kMostBytes) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " put ", size,
                                              " bytes as ", key, "; at most ",
                                              kMostBytes, " were expected"));
    }
    // With room for what it said it has at least one more try.
    if (!all && !is_first && deadline.Passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "exchange: get(", key, ") of rank ", rank, " said ", size,
          " bytes when it had room for the ", value.size(),
          " that it said before. Have it say how many there are."));
    }
    value.resize(static_cast<std::size_t>(size));
    if (all) return value;
  }
}

vmm::fabric::ExchangeCallbacks CallbacksOf(const vmmshare_exchange& given) {
  vmm::fabric::ExchangeCallbacks calls;
  calls.job = given.job == nullptr ? "job" : given.job;
  calls.scope = given.scope == nullptr ? "" : given.scope;
  calls.rank = given.rank;
  calls.size = given.size;
  calls.put = [given](const std::string& key,
                      absl::Span<const std::uint8_t> value,
                      absl::Time deadline) {
    return CallExchange("put", key, [&] {
      return given.put(given.user, key.c_str(), value.data(), value.size(),
                       LeftUntil(deadline));
    });
  };
  calls.fence = [given](absl::Time deadline) {
    return CallExchange("fence", "", [&] {
      return given.fence(given.user, LeftUntil(deadline));
    });
  };
  calls.get = [given](int rank, const std::string& key, absl::Time deadline) {
    return Get(given, rank, key, deadline);
  };
  return calls;
}

absl::StatusOr<vmm::fabric::ExchangeCallbacks> ReadExchange(
    const vmmshare_exchange* exchange) {
  RETURN_IF_ERROR(CheckGiven(exchange, "exchange"));
  ASSIGN_OR_RETURN(const vmmshare_exchange given,
                   vmm::c::ReadOptions(exchange, 64, "vmmshare_exchange"));
  if (given.put == nullptr || given.fence == nullptr || given.get == nullptr) {
    return absl::InvalidArgumentError(
        "put, fence or get of the exchange is NULL. Give all three.");
  }
  if (given.size < 1 || given.rank < 0 || given.rank >= given.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", given.rank, " of ", given.size,
                     " makes no sense. Give a rank from 0 to size - 1."));
  }
  return CallbacksOf(given);
}

// Of this rank; or why it has none, as all ranks are told.
absl::StatusOr<vmm::Device> DeviceOf(const vmmshare_device* device,
                                     const char* no_device) {
  absl::Status usable = Check(device);
  if (usable.ok()) return device->device;
  if (device == nullptr && no_device != nullptr) {
    return absl::NotFoundError(no_device);
  }
  return usable;
}

}  // namespace

vmmshare_status vmmshare_symmetric_create(
    const vmmshare_device* device, const vmmshare_exchange* exchange,
    const vmmshare_symmetric_options* options, std::int64_t timeout_ns,
    vmmshare_symmetric** symmetric, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(symmetric, "symmetric"));
    ASSIGN_OR_RETURN(
        const vmmshare_symmetric_options given,
        vmm::c::ReadOptions(options, 24, "vmmshare_symmetric_options"));
    RETURN_IF_ERROR(vmm::c::CheckBits(given.flags, 0, "flags"));
    if (given.size > vmm::job::SymmetricHeap::kMaxSize) {
      return absl::InvalidArgumentError(absl::StrCat(
          "symmetric memory of ", given.size,
          " bytes a rank was asked for; expected at most ",
          vmm::job::SymmetricHeap::kMaxSize, ". Make several of fewer bytes."));
    }
    ASSIGN_OR_RETURN(vmm::fabric::ExchangeCallbacks calls,
                     ReadExchange(exchange));
    vmm::job::SymmetricOptions wanted;
    wanted.size = given.size;
    if (given.kinds != 0) {
      ASSIGN_OR_RETURN(vmm::c::Placing placing,
                       vmm::c::PlacingOf(given.kinds, 0, 0, nullptr, 0));
      wanted.sharing = std::move(placing.sharing);
    }
    const absl::StatusOr<vmm::Device> on = DeviceOf(device, given.no_device);
    vmm::fabric::CallbackExchange own(std::move(calls));
    return Make(symmetric,
                vmm::job::SymmetricMemory::Create(
                    on, own, wanted, vmm::c::DeadlineOf(timeout_ns)));
  });
}

void vmmshare_symmetric_close(vmmshare_symmetric* symmetric) {
  vmm::c::Close(symmetric);
}

std::uint64_t vmmshare_symmetric_address(const vmmshare_symmetric* symmetric,
                                         std::int32_t rank) {
  if (!Check(symmetric).ok() || rank < 0 || rank >= symmetric->memory.ranks()) {
    return 0;
  }
  return symmetric->memory.address(rank);
}

std::uint64_t vmmshare_symmetric_size(const vmmshare_symmetric* symmetric) {
  return Check(symmetric).ok() ? symmetric->memory.size() : 0;
}

vmmshare_status vmmshare_symmetric_allocate(vmmshare_symmetric* symmetric,
                                            std::uint64_t size,
                                            std::uint64_t alignment,
                                            std::uint64_t* offset,
                                            vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(offset, "offset"));
    RETURN_IF_ERROR(Check(symmetric));
    ASSIGN_OR_RETURN(
        *offset, symmetric->heap.Allocate(
                     size, alignment == 0 ? vmm::job::SymmetricHeap::kGranule
                                          : alignment));
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_symmetric_free(vmmshare_symmetric* symmetric,
                                        std::uint64_t offset,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(symmetric));
    return symmetric->heap.Free(offset);
  });
}

vmmshare_status vmmshare_symmetric_check_agreed(
    const vmmshare_symmetric* symmetric, const vmmshare_exchange* exchange,
    std::int64_t timeout_ns, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(symmetric));
    ASSIGN_OR_RETURN(vmm::fabric::ExchangeCallbacks calls,
                     ReadExchange(exchange));
    vmm::fabric::CallbackExchange own(std::move(calls));
    return symmetric->heap.CheckAgreed(own, vmm::c::DeadlineOf(timeout_ns));
  });
}
