// Releasing and restoring against a model, in random operations:
// VMMSHARE_RESTORE_OPERATIONS of them, 2,000 unless set.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ipc/restorable_ipc_test.h"
#include "tests/support/how_many.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kBytes = 4096;  // Of which the contents are looked at.
constexpr std::size_t kImporters = 3;

// What must be so: one memory, with contents, which the owner has released or not;
// and importers, each of which has it, has released it, or is none.
struct Model {
  std::uint64_t seed = 1;
  bool released = false;
  bool kept = false;  // While released.
  struct Import {
    bool exists = false;
    bool released = false;
  };
  std::vector<Import> imports{kImporters};

  bool IsHeld() const {
    for (const Import& one : imports) {
      if (one.exists && !one.released) return true;
    }
    return false;
  }
};

class RestorableModel : public RestorableIpcTest {
 protected:
  std::uint64_t Below(std::uint64_t limit) { return random_() % limit; }

  // One operation on the owner; what it must come to is the model's.
  void StepOfOwner() {
    switch (Below(4)) {
      case 0: {
        const Keep keep = Below(4) == 0 ? Keep::kNothing : Keep::kHostMemory;
        // Whoever holds it does so for ever.
        const absl::Status status =
            owner_->Release(keep, model_.IsHeld() ? absl::Now() : Late());
        if (model_.released)
          return Expect(status, absl::StatusCode::kFailedPrecondition);
        if (model_.IsHeld())
          return Expect(status, absl::StatusCode::kDeadlineExceeded);
        Expect(status, absl::StatusCode::kOk);
        model_.released = true;
        model_.kept = keep == Keep::kHostMemory;
        return;
      }
      case 1: {
        const absl::Status status = owner_->Restore();
        if (!model_.released || !model_.kept) {
          return Expect(status, absl::StatusCode::kFailedPrecondition);
        }
        Expect(status, absl::StatusCode::kOk);
        model_.released = false;
        return;
      }
      case 2: {
        const bool fails = Below(3) == 0;
        const std::uint64_t seed = ++last_seed_;
        const absl::Status status =
            owner_->Restore([&](const Allocation& there) {
              WritePattern(there.address(), kBytes, seed);
              return fails ? absl::AbortedError("as it was told")
                           : absl::OkStatus();
            });
        if (!model_.released)
          return Expect(status, absl::StatusCode::kFailedPrecondition);
        Expect(status,
               fails ? absl::StatusCode::kAborted : absl::StatusCode::kOk);
        if (fails) return;
        model_.released = false;
        model_.seed = seed;
        return;
      }
      default:
        if (model_.released) return;
        model_.seed = ++last_seed_;
        WritePattern(owner_->address(), kBytes, model_.seed);
    }
  }

  void StepOfImporter(std::size_t which) {
    Model::Import& model = model_.imports[which];
    std::optional<RestorableImport>& import = imports_[which];
    if (!model.exists) {
      absl::StatusOr<RestorableImport> opened = RestorableImport::Open(
          driver(), owner_->ticket(), {.access = Access::kReadWrite}, Once());
      Expect(opened.status(), model_.released
                                  ? absl::StatusCode::kResourceExhausted
                                  : absl::StatusCode::kOk);
      if (!opened.ok()) return;
      import = *std::move(opened);
      addresses_[which] = import->address();
      model = {.exists = true};
      return;
    }
    switch (Below(4)) {
      case 0: {
        const absl::Status status = import->Release();
        Expect(status, model.released ? absl::StatusCode::kFailedPrecondition
                                      : absl::StatusCode::kOk);
        model.released = true;
        return;
      }
      case 1: {
        const absl::Status status = import->Restore(Once());
        if (!model.released)
          return Expect(status, absl::StatusCode::kFailedPrecondition);
        Expect(status, model_.released ? absl::StatusCode::kResourceExhausted
                                       : absl::StatusCode::kOk);
        model.released = model_.released;
        return;
      }
      case 2:
        if (model.released) return;
        model_.seed = ++last_seed_;
        WritePattern(import->address(), kBytes, model_.seed);
        return;
      default:
        if (Below(3) != 0) return;
        import.reset();
        model = {};
    }
  }

  void Check() {
    ASSERT_EQ(owner_->is_released(), model_.released);
    ASSERT_EQ(owner_->address(), address_);
    if (!model_.released) ExpectPattern(address_, kBytes, model_.seed);
    for (std::size_t i = 0; i < kImporters; ++i) {
      const Model::Import& model = model_.imports[i];
      ASSERT_EQ(imports_[i].has_value(), model.exists);
      if (!model.exists) continue;
      ASSERT_EQ(imports_[i]->is_released(), model.released);
      ASSERT_EQ(imports_[i]->address(), addresses_[i]);
      if (!model.released) ExpectPattern(addresses_[i], kBytes, model_.seed);
    }
    ExpectFree(free_ + (model_.released ? kGranule : 0));
  }

  void Expect(const absl::Status& status, absl::StatusCode code) {
    EXPECT_EQ(status.code(), code) << status;
    ++outcomes_[status.ok() ? 1 : 0];
  }
  // With an infinite deadline it is asked once.
  static absl::Time Once() { return absl::InfiniteFuture(); }

  const std::uint64_t seed_ =
      HowMany("VMMSHARE_MODEL_SEED", std::random_device()());
  std::mt19937_64 random_{seed_};
  Model model_;
  std::uint64_t last_seed_ = 1;
  std::optional<RestorableAllocation> owner_ = MakeRestorable(1);
  const CUdeviceptr address_ = owner_->address();
  const std::uint64_t free_ = FreeMemory();
  std::optional<RestorableImport> imports_[kImporters];
  CUdeviceptr addresses_[kImporters] = {};
  std::uint64_t outcomes_[2] = {};
};

TEST_F(RestorableModel, DoesWhatItDoes) {
  WritePattern(address_, kBytes, 1);
  const std::uint64_t operations = HowMany("VMMSHARE_RESTORE_OPERATIONS", 2000);
  for (std::uint64_t i = 0; i < operations && !HasFailure(); ++i) {
    SCOPED_TRACE(
        absl::StrCat("operation ", i, " of VMMSHARE_MODEL_SEED=", seed_));
    const std::uint64_t who = Below(2 + kImporters);
    if (who < 2) {
      StepOfOwner();
    } else {
      StepOfImporter(who - 2);
    }
    Check();
  }
  std::printf("%llu operations succeeded, %llu were refused\n",
              static_cast<unsigned long long>(outcomes_[1]),
              static_cast<unsigned long long>(outcomes_[0]));
}

}  // namespace
}  // namespace vmm::testing
