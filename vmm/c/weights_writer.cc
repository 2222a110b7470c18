// Sets that are being written, and published: see vmm/c/weights.h.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/internal/tensor.h"
#include "vmm/c/weights.h"
#include "vmm/weights/tensor_set.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckBits;
using vmm::c::CheckGiven;
using vmm::c::Clear;

struct vmmshare_weights_writer
    : vmm::c::Handle<vmm::c::HandleType::kWeightsWriter> {
  vmmshare_weights_writer(const vmmshare_memory& in, vmm::TensorSetWriter begun)
      : memory(in.held), writer(std::move(begun)) {}
  // The writer goes before its memory.
  const std::shared_ptr<const vmmshare_memory::Any> memory;
  vmm::TensorSetWriter writer;
};

namespace {

absl::StatusOr<vmm::TensorSetWriter::ReadFilesOptions> ReadFilesOptionsOf(
    const vmmshare_read_options* options) {
  ASSIGN_OR_RETURN(const vmmshare_read_options given,
                   vmm::c::ReadOptions(options, 32, "vmmshare_read_options"));
  RETURN_IF_ERROR(CheckBits(given.reserved, 0, "reserved"));
  vmm::TensorSetWriter::ReadFilesOptions made;
  made.threads = given.threads;
  if (given.progress == nullptr) return made;
  made.progress = [given](std::uint64_t done, std::uint64_t total) {
    return vmm::c::CallOwn(
        "`progress`", [&] { return given.progress(given.user, done, total); });
  };
  return made;
}

}  // namespace

vmmshare_status vmmshare_weights_begin(const vmmshare_driver* driver,
                                       const vmmshare_memory* memory,
                                       const vmmshare_weights_layout* layout,
                                       vmmshare_weights_writer** writer,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(writer, "writer"));
    RETURN_IF_ERROR(Check(driver));
    RETURN_IF_ERROR(Check(memory));
    RETURN_IF_ERROR(Check(layout));
    ASSIGN_OR_RETURN(
        auto begun,
        vmm::TensorSetWriter::Begin(
            driver->driver, vmmshare_memory_address(memory),
            vmmshare_memory_requested_size(memory), layout->layout));
    *writer = new vmmshare_weights_writer(*memory, std::move(begun));
    return absl::OkStatus();
  });
}

void vmmshare_weights_writer_close(vmmshare_weights_writer* writer) {
  vmm::c::Close(writer);
}

vmmshare_status vmmshare_weights_write(vmmshare_weights_writer* writer,
                                       std::uint64_t place,
                                       std::uint64_t offset, const void* bytes,
                                       std::uint64_t size,
                                       vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(writer));
    if (size != 0) RETURN_IF_ERROR(CheckGiven(bytes, "bytes"));
    return writer->writer.Write(static_cast<std::size_t>(place), offset,
                                {static_cast<const std::uint8_t*>(bytes),
                                 static_cast<std::size_t>(size)});
  });
}

vmmshare_status vmmshare_weights_read_file(vmmshare_weights_writer* writer,
                                           std::uint64_t place,
                                           const char* path,
                                           std::uint64_t offset,
                                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(writer));
    RETURN_IF_ERROR(CheckGiven(path, "path"));
    return writer->writer.ReadFile(static_cast<std::size_t>(place), path,
                                   offset);
  });
}

vmmshare_status vmmshare_weights_read_rows(
    vmmshare_weights_writer* writer, std::uint64_t place, const char* path,
    std::uint64_t offset, std::uint64_t row_bytes, std::uint64_t pitch,
    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(writer));
    RETURN_IF_ERROR(CheckGiven(path, "path"));
    return writer->writer.ReadFileRows(static_cast<std::size_t>(place), path,
                                       {offset, row_bytes, pitch});
  });
}

vmmshare_status vmmshare_weights_read_files(
    vmmshare_weights_writer* writer, const char* const* paths,
    std::uint64_t path_count, const vmmshare_file_read* reads,
    std::uint64_t count, const vmmshare_read_options* options,
    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(writer));
    if (path_count != 0) RETURN_IF_ERROR(CheckGiven(paths, "paths"));
    if (count != 0) RETURN_IF_ERROR(CheckGiven(reads, "reads"));
    ASSIGN_OR_RETURN(const auto given, ReadFilesOptionsOf(options));
    std::vector<std::string> files;
    for (const char* const path :
         absl::MakeConstSpan(paths, static_cast<std::size_t>(path_count))) {
      RETURN_IF_ERROR(CheckGiven(path, "path"));
      files.emplace_back(path);
    }
    std::vector<vmm::TensorSetWriter::FileRead> all;
    for (const vmmshare_file_read& read :
         absl::MakeConstSpan(reads, static_cast<std::size_t>(count))) {
      all.push_back({static_cast<std::size_t>(read.place),
                     static_cast<std::size_t>(read.path),
                     {read.offset, read.row_bytes, read.pitch}});
    }
    return writer->writer.ReadFiles(files, all, given);
  });
}

vmmshare_status vmmshare_weights_copy(vmmshare_weights_writer* writer,
                                      std::uint64_t place,
                                      std::uint64_t address,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(writer));
    return writer->writer.CopyFrom(static_cast<std::size_t>(place), address);
  });
}

vmmshare_status vmmshare_weights_copy_all(vmmshare_weights_writer* writer,
                                          const std::uint64_t* places,
                                          const std::uint64_t* addresses,
                                          std::uint64_t count, void* stream,
                                          std::uint32_t flags,
                                          vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(writer));
    RETURN_IF_ERROR(CheckBits(flags, VMMSHARE_WEIGHTS_FROM_DEVICE, "flags"));
    if (count != 0) {
      RETURN_IF_ERROR(CheckGiven(places, "places"));
      RETURN_IF_ERROR(CheckGiven(addresses, "addresses"));
    }
    std::vector<vmm::TensorSetWriter::Source> sources;
    sources.reserve(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) {
      sources.push_back({static_cast<std::size_t>(places[i]), addresses[i]});
    }
    return writer->writer.CopyAll(sources, vmm::c::StreamOf(stream),
                                  flags == VMMSHARE_WEIGHTS_FROM_DEVICE
                                      ? vmm::TensorSetWriter::From::kDevice
                                      : vmm::TensorSetWriter::From::kAnywhere);
  });
}

vmmshare_status vmmshare_weights_seal(vmmshare_weights_writer* writer,
                                      std::uint64_t generation,
                                      std::uint32_t flags,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(writer));
    RETURN_IF_ERROR(CheckBits(flags, VMMSHARE_WEIGHTS_CHECKSUM_ALL, "flags"));
    if (flags != 0) RETURN_IF_ERROR(writer->writer.TakeChecksums());
    return writer->writer.Seal({.generation = generation});
  });
}

vmmshare_status vmmshare_weights_publish(
    vmmshare_weights_writer* writer, vmmshare_keeper* keeper, const char* name,
    const vmmshare_memory* memory, std::uint32_t flags, std::int64_t timeout_ns,
    std::uint64_t* generation, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (generation != nullptr) *generation = 0;
    RETURN_IF_ERROR(Check(writer));
    RETURN_IF_ERROR(Check(keeper));
    RETURN_IF_ERROR(CheckGiven(name, "name"));
    ASSIGN_OR_RETURN(const vmm::Shareable shareable,
                     vmm::c::ShareableOf(memory));
    RETURN_IF_ERROR(CheckBits(flags, VMMSHARE_WEIGHTS_CHECKSUM_ALL, "flags"));
    // Before checksums of all are taken for nothing.
    RETURN_IF_ERROR(writer->writer.CheckWritesTo(shareable));
    // Where the CPU takes them it is seconds, which are not the keeper's.
    if (flags != 0) RETURN_IF_ERROR(writer->writer.TakeChecksums());
    ASSIGN_OR_RETURN(
        const std::uint64_t published,
        vmm::PublishTensorSet(keeper->keeper, name, shareable, writer->writer,
                              vmm::c::DeadlineOf(timeout_ns)));
    if (generation != nullptr) *generation = published;
    return absl::OkStatus();
  });
}
