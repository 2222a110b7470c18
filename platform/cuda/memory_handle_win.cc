#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/memory_handle.h"
#include "platform/os/kernel_object_win.h"

namespace vmm::platform {
namespace {

// Types of the kernel's that are never memory. NVIDIA does not document the
// type of the handles its driver exports, and it may differ between WDDM
// (where shared graphics memory is a DxgkSharedResource), MCDM and TCC; so
// what cannot be memory is refused by name, and the driver judges the rest.
constexpr absl::string_view kNeverMemory[] = {
    "ALPC Port",    "Desktop",         "Directory",    "Event",  "File",
    "Job",          "IoCompletion",    "Key",          "Mutant", "Process",
    "Semaphore",    "Session",         "Thread",       "Timer",  "Token",
    "SymbolicLink", "TpWorkerFactory", "WindowStation"};

constexpr absl::string_view kHostMemory =
    "memory exported by the host-memory driver";
constexpr absl::string_view kNvidiaMemory =
    "GPU memory exported by the NVIDIA driver";

// What the section `object` is, if it has no file. `expected` is what it should
// have been, for the message.
absl::StatusOr<SectionFacts> LookAtSection(const OsHandle& handle,
                                           const KernelObject& object,
                                           absl::string_view expected) {
  if ((object.access & kSectionQuery) == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the handle is a section that may not be asked about (its access is "
        "0x%x; expected SECTION_QUERY, 0x%x, in it)",
        object.access, kSectionQuery));
  }
  ASSIGN_OR_RETURN(const SectionFacts section, InspectSection(handle.get()));
  if (section.is_image || section.has_file) {
    return absl::InvalidArgumentError(
        absl::StrCat("the handle is a section of ",
                     section.is_image ? "a program's image" : "a file",
                     "; expected ", expected, ", which has no file behind it"));
  }
  return section;
}

absl::Status CheckHostMemory(const OsHandle& handle, const KernelObject& object,
                             std::uint64_t size) {
  if (object.type != "Section") {
    return absl::InvalidArgumentError(absl::StrCat("the handle is of type ",
                                                   object.type, "; expected ",
                                                   kHostMemory, ", a Section"));
  }
  ASSIGN_OR_RETURN(const SectionFacts section,
                   LookAtSection(handle, object, kHostMemory));
  constexpr std::uint32_t kNeeded =
      kSectionQuery | kSectionMapRead | kSectionMapWrite;
  if ((object.access & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the handle is a section with access 0x%x; expected one that may be "
        "read and written, 0x%x",
        object.access, kNeeded));
  }
  if (!section.is_committed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the handle is a section without memory, only reserved; expected ",
        kHostMemory, ", which is committed"));
  }
  if (section.size != size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the handle is a section of ", section.size,
                     " bytes; expected ", size, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckNvidiaMemory(const OsHandle& handle,
                               const KernelObject& object) {
  if (std::find(std::begin(kNeverMemory), std::end(kNeverMemory),
                object.type) != std::end(kNeverMemory)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the handle is of type ", object.type, "; expected ", kNvidiaMemory));
  }
  return object.type == "Section"
             ? LookAtSection(handle, object, kNvidiaMemory).status()
             : absl::OkStatus();
}

}  // namespace

absl::Status CheckMemoryHandle(const OsHandle& handle, MemoryBacking backing,
                               std::uint64_t size) {
  absl::StatusOr<KernelObject> object = InspectHandle(handle.get());
  if (!object.ok()) {
    return Annotate(object.status(), "",
                    "Expected an open handle of exported GPU memory.");
  }
  return backing == MemoryBacking::kHostMemory
             ? CheckHostMemory(handle, *object, size)
             : CheckNvidiaMemory(handle, *object);
}

namespace {

CUresult Make(const Driver& driver, CUmemGenericAllocationHandle memory,
              OsHandle* handle) {
  // As wide as a HANDLE, which is what the driver writes.
  OsHandle::Value raw = 0;
  const CUresult result = driver->cuMemExportToShareableHandle(
      &raw, memory, kMemoryHandleKind.type, 0);
  if (result == CUDA_SUCCESS) *handle = OsHandle::Adopt(raw);
  return result;
}

CUresult MakePool(const Driver& driver, CUmemoryPool pool, OsHandle* handle) {
  OsHandle::Value raw = 0;
  const CUresult result = driver->cuMemPoolExportToShareableHandle(
      &raw, pool, kMemoryHandleKind.type, 0);
  if (result == CUDA_SUCCESS) *handle = OsHandle::Adopt(raw);
  return result;
}

}  // namespace

const MemoryHandleKind kMemoryHandleKind = {
    CU_MEM_HANDLE_TYPE_WIN32,
    "NT handle",
    "Only memory created with this handle kind can be exported, and imported "
    "memory never.",
    "Virtual GPUs have no virtual memory management.",
    &Make,
    &MakePool};

}  // namespace vmm::platform
