#include "vmm/memory/internal/host_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "platform/base/status_macros.h"
#include "platform/os/file_reader.h"
#include "vmm/memory/internal/own_stream.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;

// What was put on `stream` has ended when it returns, whatever came of
// putting it there, `started`: whoever gets an error frees the memory next, and
// a copy that is still under way there would end the context.
absl::Status Finish(const Driver& driver, CUstream stream,
                    const absl::Status& started) {
  const CUresult r = driver->cuStreamSynchronize(stream);
  if (!started.ok() || r == CUDA_SUCCESS) return started;
  return driver.Error(r, "cuStreamSynchronize() after a copy");
}

absl::Status ToDevice(const Driver& driver, CUstream stream, CUdeviceptr to,
                      const void* from, std::uint64_t size) {
  return Finish(
      driver, stream,
      Copied(driver, driver->cuMemcpyHtoDAsync(to, from, size, stream),
             "cuMemcpyHtoDAsync", to, size));
}

// Copies `size` bytes of `file`, which is at `path`, from `offset` on.
absl::Status CopyPieces(const Driver& driver, CUstream stream,
                        const platform::FileReader& file,
                        const std::string& path, std::uint64_t offset,
                        CUdeviceptr to, std::uint64_t size) {
  std::vector<std::uint8_t> piece(
      static_cast<std::size_t>(std::min(size, kPiece)));
  for (std::uint64_t done = 0; done < size;) {
    const absl::Span<std::uint8_t> part =
        absl::MakeSpan(piece).first(static_cast<std::size_t>(
            std::min<std::uint64_t>(piece.size(), size - done)));
    ASSIGN_OR_RETURN(const std::size_t count, file.Read(offset + done, part));
    if (count < part.size()) {
      return absl::DataLossError(absl::StrCat(
          path, " ends after ", offset + done + count, " bytes; expected ",
          offset + size, ", the memory's and the ", offset, " before"));
    }
    RETURN_IF_ERROR(
        ToDevice(driver, stream, to + done, part.data(), part.size()));
    done += part.size();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Copied(const Driver& driver, CUresult result,
                    absl::string_view name, CUdeviceptr address,
                    std::uint64_t size) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return driver.Error(result, absl::StrCat(name, "(0x", absl::Hex(address),
                                           ", ", size, " bytes)"));
}

absl::StatusOr<HostCopy> HostCopy::Of(const Device& device, CUdeviceptr from,
                                      std::uint64_t size) {
  const Driver& driver = device.driver();
  const RelaxedCapture relaxed(driver);
  ASSIGN_OR_RETURN(PrimaryContext retained, PrimaryContext::Retain(device));
  auto context = std::make_shared<const PrimaryContext>(std::move(retained));
  ASSIGN_OR_RETURN(const CurrentContext current, context->MakeCurrent());
  ASSIGN_OR_RETURN(PinnedBytes pinned, PinnedBytes::Pin(device, context, size));
  ASSIGN_OR_RETURN(const OwnedStream own, MakeOwnStream(driver));
  const CUstream stream = own.get().stream;
  RETURN_IF_ERROR(Finish(
      driver, stream,
      Copied(driver, driver->cuMemcpyDtoHAsync(pinned.at(), from, size, stream),
             "cuMemcpyDtoHAsync", from, size)));
  return HostCopy(device, std::move(context), std::move(pinned));
}

absl::Status HostCopy::WriteTo(CUdeviceptr to) const {
  const Driver& driver = device_.driver();
  const RelaxedCapture relaxed(driver);
  ASSIGN_OR_RETURN(const CurrentContext current, context_->MakeCurrent());
  ASSIGN_OR_RETURN(const OwnedStream own, MakeOwnStream(driver));
  return ToDevice(driver, own.get().stream, to, bytes_.at(), size());
}

absl::Status CopyFromFile(const Device& device, const std::string& path,
                          std::uint64_t offset, CUdeviceptr to,
                          std::uint64_t size) {
  // Beyond, no system has an offset; and the sums below would wrap.
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (size > kMost || offset > kMost - size) {
    return absl::InvalidArgumentError(absl::StrCat(
        size, " bytes of ", path, " from offset ", offset,
        " on: no file has these; expected that they end by 2^63 - 1. Give the "
        "offset of the contents in the file."));
  }
  const Driver& driver = device.driver();
  const RelaxedCapture relaxed(driver);
  ASSIGN_OR_RETURN(const platform::FileReader file,
                   platform::FileReader::Open(path));
  ASSIGN_OR_RETURN(const PrimaryContext context,
                   PrimaryContext::Retain(device));
  ASSIGN_OR_RETURN(const CurrentContext current, context.MakeCurrent());
  ASSIGN_OR_RETURN(const OwnedStream own, MakeOwnStream(driver));
  return CopyPieces(driver, own.get().stream, file, path, offset, to, size);
}

}  // namespace vmm
