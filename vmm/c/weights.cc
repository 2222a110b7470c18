#include "vmm/c/weights.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/internal/tensor.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/tensor_set.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckBits;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::HandleType;

struct vmmshare_weights_layout : vmm::c::Handle<HandleType::kWeightsLayout> {
  explicit vmmshare_weights_layout(vmm::TensorSetNotes notes)
      : layout(std::move(notes)) {}
  vmm::TensorLayout layout;
};

struct vmmshare_weights_writer : vmm::c::Handle<HandleType::kWeightsWriter> {
  vmmshare_weights_writer(const vmmshare_memory& in, vmm::TensorSetWriter begun)
      : memory(in.held), writer(std::move(begun)) {}
  // The writer goes before its memory.
  const std::shared_ptr<const vmmshare_memory::Any> memory;
  vmm::TensorSetWriter writer;
};

struct vmmshare_weights : vmm::c::Handle<HandleType::kWeights> {
  vmmshare_weights(const vmmshare_memory& in, vmm::TensorSet opened)
      : memory(in.held), set(std::move(opened)) {}
  // The set goes before its memory.
  const std::shared_ptr<const vmmshare_memory::Any> memory;
  const vmm::TensorSet set;
};

namespace {

constexpr std::size_t kReadOptionsBytes = 32;

absl::StatusOr<std::vector<std::int64_t>> NumbersOf(const std::int64_t* numbers,
                                                    std::uint32_t rank,
                                                    absl::string_view name) {
  if (rank == 0) return std::vector<std::int64_t>();
  RETURN_IF_ERROR(CheckGiven(numbers, name));
  return std::vector<std::int64_t>(numbers, numbers + rank);
}

absl::StatusOr<vmm::TensorSetWriter::ReadFilesOptions> ReadFilesOptionsOf(
    const vmmshare_read_options* options) {
  ASSIGN_OR_RETURN(
      const vmmshare_read_options given,
      vmm::c::ReadOptions(options, kReadOptionsBytes, "vmmshare_read_options"));
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

vmmshare_status vmmshare_weights_layout_create(const char* fingerprint,
                                               vmmshare_weights_layout** layout,
                                               vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(layout, "layout"));
    vmm::TensorManifest named;  // Whoever writes the set is refused it, too.
    named.fingerprint = fingerprint == nullptr ? "" : fingerprint;
    RETURN_IF_ERROR(vmm::weights::CheckNotes(named));
    *layout = new vmmshare_weights_layout(
        {.fingerprint = std::move(named.fingerprint)});
    return absl::OkStatus();
  });
}

void vmmshare_weights_layout_close(vmmshare_weights_layout* layout) {
  vmm::c::Close(layout);
}

vmmshare_status vmmshare_weights_layout_note(vmmshare_weights_layout* layout,
                                             const char* key, const char* value,
                                             vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(layout));
    RETURN_IF_ERROR(CheckGiven(key, "key"));
    RETURN_IF_ERROR(CheckGiven(value, "value"));
    // Before there is memory, and while the caller knows where it is from.
    RETURN_IF_ERROR(
        vmm::weights::CheckNote(layout->layout.manifest(), key, value));
    layout->layout.Note(key, value);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_weights_layout_add(vmmshare_weights_layout* layout,
                                            const vmmshare_tensor* tensor,
                                            std::uint64_t* place,
                                            vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (place != nullptr) *place = 0;
    RETURN_IF_ERROR(Check(layout));
    RETURN_IF_ERROR(CheckGiven(tensor, "tensor"));
    ASSIGN_OR_RETURN(
        const vmmshare_tensor given,
        vmm::c::ReadOptions(tensor, vmm::c::kTensorBytes, "vmmshare_tensor"));
    RETURN_IF_ERROR(CheckGiven(given.name, "name"));
    RETURN_IF_ERROR(CheckBits(given.flags,
                              VMMSHARE_TENSOR_ALIAS | VMMSHARE_TENSOR_CHECKSUM,
                              "flags"));
    RETURN_IF_ERROR(CheckBits(given.reserved, 0, "reserved"));
    if (given.rank > vmm::kMaxTensorRank) {
      return absl::InvalidArgumentError(absl::StrCat(
          given.rank, " dimensions; at most ", vmm::kMaxTensorRank));
    }
    const auto dtype = static_cast<vmm::DType>(given.dtype);
    if (given.dtype > UINT8_MAX || vmm::SizeOf(dtype) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dtype ", given.dtype, "; expected one of VMMSHARE_DTYPE_*"));
    }
    ASSIGN_OR_RETURN(auto shape, NumbersOf(given.shape, given.rank, "shape"));
    std::vector<std::int64_t> strides;
    if (given.strides != nullptr) {
      ASSIGN_OR_RETURN(strides,
                       NumbersOf(given.strides, given.rank, "strides"));
    }
    std::size_t added = 0;
    if ((given.flags & VMMSHARE_TENSOR_ALIAS) != 0) {
      ASSIGN_OR_RETURN(
          added, layout->layout.AddAlias(given.name, given.alias_of, dtype,
                                         std::move(shape), std::move(strides),
                                         given.offset));
    } else {
      ASSIGN_OR_RETURN(added,
                       layout->layout.Add(given.name, dtype, std::move(shape),
                                          std::move(strides)));
    }
    if (place != nullptr) *place = added;
    return absl::OkStatus();
  });
}

std::uint64_t vmmshare_weights_layout_size(
    const vmmshare_weights_layout* layout) {
  return Check(layout).ok() ? layout->layout.size() : 0;
}

vmmshare_status vmmshare_weights_layout_tensor(
    const vmmshare_weights_layout* layout, std::uint64_t place,
    vmmshare_tensor* tensor, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(layout));
    return vmm::c::Describe(layout->layout.manifest().tensors, place, tensor);
  });
}

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

vmmshare_status vmmshare_weights_open(const vmmshare_driver* driver,
                                      const vmmshare_memory* memory,
                                      vmmshare_weights** weights,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(weights, "weights"));
    RETURN_IF_ERROR(Check(driver));
    RETURN_IF_ERROR(Check(memory));
    ASSIGN_OR_RETURN(
        auto opened,
        vmm::TensorSet::Open(driver->driver, vmmshare_memory_address(memory),
                             vmmshare_memory_requested_size(memory)));
    *weights = new vmmshare_weights(*memory, std::move(opened));
    return absl::OkStatus();
  });
}

void vmmshare_weights_close(vmmshare_weights* weights) {
  vmm::c::Close(weights);
}

std::uint64_t vmmshare_weights_count(const vmmshare_weights* weights) {
  return Check(weights).ok() ? weights->set.manifest().tensors.size() : 0;
}

std::uint64_t vmmshare_weights_generation(const vmmshare_weights* weights) {
  return Check(weights).ok() ? weights->set.manifest().generation : 0;
}

const char* vmmshare_weights_fingerprint(const vmmshare_weights* weights) {
  return Check(weights).ok() ? weights->set.manifest().fingerprint.c_str() : "";
}

vmmshare_status vmmshare_weights_metadata(const vmmshare_weights* weights,
                                          vmmshare_text** json,
                                          vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    RETURN_IF_ERROR(Check(weights));
    *json = vmm::c::JsonOf(weights->set.manifest().metadata);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_weights_tensor(const vmmshare_weights* weights,
                                        std::uint64_t place,
                                        vmmshare_tensor* tensor,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(weights));
    return vmm::c::Describe(weights->set.manifest().tensors, place, tensor);
  });
}

vmmshare_status vmmshare_weights_find(const vmmshare_weights* weights,
                                      const char* name, std::uint64_t* place,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(place, "place"));
    RETURN_IF_ERROR(Check(weights));
    RETURN_IF_ERROR(CheckGiven(name, "name"));
    const vmm::TensorInfo* found = weights->set.Find(name);
    if (found == nullptr) {
      return absl::NotFoundError("the set has no tensor of this name");
    }
    *place = static_cast<std::uint64_t>(found -
                                        weights->set.manifest().tensors.data());
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_weights_verify(const vmmshare_weights* weights,
                                        std::uint64_t* compared,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (compared != nullptr) *compared = 0;
    RETURN_IF_ERROR(Check(weights));
    ASSIGN_OR_RETURN(const std::size_t count, weights->set.Verify());
    if (compared != nullptr) *compared = count;
    return absl::OkStatus();
  });
}
