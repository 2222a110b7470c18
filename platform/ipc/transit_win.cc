#include "platform/ipc/transit_win.h"

#include <windows.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/base/wire.h"
#include "platform/os/kernel_object_win.h"
#include "platform/os/os_error.h"

namespace vmm::platform {
namespace {

constexpr std::array<std::uint8_t, 4> kTaken = {'V', 'M', 'S', 'A'};

HANDLE Raw(std::intptr_t value) { return reinterpret_cast<HANDLE>(value); }

// The access a peer gets: it must not change who may do what.
absl::StatusOr<DWORD> AccessToGive(const OsHandle& handle) {
  ASSIGN_OR_RETURN(const KernelObject object, InspectHandle(handle.get()));
  return object.access & ~static_cast<DWORD>(WRITE_DAC | WRITE_OWNER);
}

// Whether `value`, which came from a peer, can be the number of a handle: not
// null, no pseudo handle (which would mean the reader himself), and in the
// form that the kernel gives out.
bool IsWireHandle(std::int64_t value) {
  return value > 0 && value <= std::numeric_limits<std::int32_t>::max() &&
         value % 4 == 0;
}

}  // namespace

PushedHandles::~PushedHandles() {
  for (const std::int64_t value : values_) {
    // Fails when the process has ended, and its handles with it.
    ::DuplicateHandle(Raw(process_.get()), Raw(value), nullptr, nullptr, 0,
                      FALSE, DUPLICATE_CLOSE_SOURCE);
  }
}

absl::Status PushedHandles::Push(const OsHandle& handle) {
  ASSIGN_OR_RETURN(const DWORD access, AccessToGive(handle));
  // Room first: a duplicate that could not be noted would be lost.
  values_.reserve(values_.size() + 1);
  HANDLE pushed = nullptr;
  if (::DuplicateHandle(::GetCurrentProcess(), Raw(handle.get()),
                        Raw(process_.get()), &pushed, access,
                        /*inherit=*/FALSE, 0) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error, absl::StrCat("DuplicateHandle(", handle.get(),
                                       ", into the peer)"));
  }
  values_.push_back(reinterpret_cast<std::intptr_t>(pushed));
  return absl::OkStatus();
}

absl::StatusOr<OsHandle> Park(const OsHandle& handle) {
  ASSIGN_OR_RETURN(const DWORD access, AccessToGive(handle));
  HANDLE parked = nullptr;
  if (::DuplicateHandle(::GetCurrentProcess(), Raw(handle.get()),
                        ::GetCurrentProcess(), &parked, access,
                        /*inherit=*/FALSE, 0) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error, absl::StrCat("DuplicateHandle(", handle.get(), ")"));
  }
  return OsHandle::Adopt(reinterpret_cast<std::intptr_t>(parked));
}

absl::StatusOr<OsHandle> Pull(const OsHandle& process, std::int64_t value) {
  if (!IsWireHandle(value)) {
    return absl::DataLossError(
        absl::StrCat("it names ", value, ", which is no handle"));
  }
  HANDLE pulled = nullptr;
  if (::DuplicateHandle(Raw(process.get()), Raw(value), ::GetCurrentProcess(),
                        &pulled, 0, /*inherit=*/FALSE,
                        DUPLICATE_SAME_ACCESS) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return absl::DataLossError(absl::StrCat(
        "it names the handle ", value, ", which cannot be had from the peer: ",
        OsError(error, "DuplicateHandle(from the peer)").message()));
  }
  return OsHandle::Adopt(reinterpret_cast<std::intptr_t>(pulled));
}

absl::StatusOr<OsHandle> TakePushed(std::int64_t value) {
  DWORD flags = 0;
  if (!IsWireHandle(value) || ::GetHandleInformation(Raw(value), &flags) == 0) {
    return absl::DataLossError(absl::StrCat(
        "it names ", value, ", which is no open handle of this process"));
  }
  return OsHandle::Adopt(value);
}

std::array<std::uint8_t, kTakenBytes> EncodeTaken(std::uint32_t count) {
  std::array<std::uint8_t, kTakenBytes> message{};
  std::copy(kTaken.begin(), kTaken.end(), message.begin());
  for (std::size_t i = 0; i < sizeof(count); ++i) {
    message[4 + i] = static_cast<std::uint8_t>(count >> (8 * i));
  }
  return message;
}

std::uint32_t DecodeTaken(absl::Span<const std::uint8_t> message) {
  WireReader reader(message);
  std::array<std::uint8_t, 4> magic{};
  reader.TakeBytes(absl::MakeSpan(magic));
  const auto count = reader.Take<std::uint32_t>();
  return message.size() == kTakenBytes && magic == kTaken ? count : 0;
}

void StoreHandle(std::int64_t value, std::uint8_t* at) {
  const auto bits = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < kHandleBytes; ++i) {
    at[i] = static_cast<std::uint8_t>(bits >> (8 * i));
  }
}

std::int64_t LoadHandle(const std::uint8_t* at) {
  WireReader reader(absl::MakeConstSpan(at, kHandleBytes));
  return static_cast<std::int64_t>(reader.Take<std::uint64_t>());
}

}  // namespace vmm::platform
