// Tensor sets under names of a keeper.
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/driver.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/tensor_set.h"

namespace vmm {
namespace {

absl::Status About(const absl::Status& status, absl::string_view name) {
  return platform::Annotate(
      status, absl::StrCat("tensor set \"", weights::Shown(name), "\""));
}

// Whether nobody has what was to be kept. Where the answer did not come somebody
// may.
bool IsRefused(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::StatusOr<KeptTensorSet> AttachTensorSet(
    KeeperClient& keeper, absl::string_view name,
    const platform::Driver& driver, const AttachTensorSetOptions& options,
    Deadline deadline) {
  ASSIGN_OR_RETURN(
      ImportedAllocation memory,
      keeper.Attach(name, driver, {.import = options.import}, deadline));
  absl::StatusOr<TensorSet> set =
      TensorSet::Open(driver, memory.address(), memory.requested_size());
  if (!set.ok()) return About(set.status(), name);
  const std::string& fingerprint = set->manifest().fingerprint;
  if (options.fingerprint.value_or(fingerprint) != fingerprint) {
    return About(absl::FailedPreconditionError(absl::StrCat(
                     "its fingerprint is \"", weights::Shown(fingerprint),
                     "\"; expected \"", weights::Shown(*options.fingerprint),
                     "\": it is of another model, or made otherwise")),
                 name);
  }
  return KeptTensorSet{std::move(memory), *std::move(set)};
}

namespace {

// The set that is there, for its manifest.
absl::StatusOr<KeptTensorSet> AttachBefore(KeeperClient& keeper,
                                           absl::string_view name,
                                           const platform::Driver& driver,
                                           const Device& device,
                                           Deadline deadline) {
  AttachTensorSetOptions options = {.import = {.host_access = Access::kRead}};
  absl::StatusOr<KeptTensorSet> set =
      AttachTensorSet(keeper, name, driver, options, deadline);
  // Perhaps it is of a GPU that this process does not see, which no call of the driver
  // has said. Another reads it.
  if (!absl::IsFailedPrecondition(set.status()) ||
      platform::ResultOf(set.status()).has_value()) {
    return set;
  }
  options.import.grants = {{Location::On(device), Access::kRead}};
  absl::StatusOr<KeptTensorSet> from_here =
      AttachTensorSet(keeper, name, driver, options, deadline);
  return from_here.ok() ? std::move(from_here) : std::move(set);
}

// `is_ours`: whether nobody has the memory after an error.
absl::StatusOr<std::uint64_t> Publish(KeeperClient& keeper,
                                      absl::string_view name,
                                      const Shareable& memory,
                                      TensorSetWriter& writer,
                                      Deadline deadline, bool* is_ours) {
  *is_ours = !writer.is_sealed();
  TensorSetWriter::SealOptions seal;
  std::optional<MemoryId> replaced;
  RETURN_IF_ERROR(About(writer.CheckWritesTo(memory), name));
  absl::StatusOr<KeptTensorSet> before =
      AttachBefore(keeper, name, writer.driver(), memory.device(), deadline);
  if (before.ok()) {
    const std::uint64_t last = before->set.manifest().generation;
    if (last == std::numeric_limits<std::uint64_t>::max()) {
      return About(
          absl::FailedPreconditionError(absl::StrCat(
              "no generation comes after its own, ", last, ": drop it first")),
          name);
    }
    seal.generation = last + 1;
    replaced = before->memory.ticket().id;
  } else if (!absl::IsNotFound(before.status())) {
    return before.status();
  }
  RETURN_IF_ERROR(About(writer.Seal(seal), name));
  absl::Status kept = keeper.Replace(name, memory, replaced, deadline);
  if (kept.ok()) return seal.generation;
  *is_ours = IsRefused(kept);
  if (replaced.has_value() && absl::IsNotFound(kept)) {
    return About(absl::AbortedError("the set that was to be replaced was "
                                    "dropped meanwhile: publish again"),
                 name);
  }
  if (replaced.has_value() || !absl::IsAlreadyExists(kept)) return kept;
  // A set that came first is another writer's. Who has the name for something
  // else has taken it.
  const bool is_set =
      AttachBefore(keeper, name, writer.driver(), memory.device(), deadline)
          .ok();
  if (!is_set) return kept;
  return About(
      absl::AbortedError("another writer published the first set meanwhile: "
                         "attach that, or publish again"),
      name);
}

}  // namespace

absl::StatusOr<std::uint64_t> PublishTensorSet(KeeperClient& keeper,
                                               absl::string_view name,
                                               const Shareable& memory,
                                               TensorSetWriter& writer,
                                               Deadline deadline) {
  bool is_ours = false;
  absl::StatusOr<std::uint64_t> generation =
      Publish(keeper, name, memory, writer, deadline, &is_ours);
  if (!generation.ok() && is_ours) writer.Reopen();
  return generation;
}

}  // namespace vmm
