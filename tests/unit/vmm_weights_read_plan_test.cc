// Plans of reads: which bytes of files are read at once, and which first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/must.h"
#include "vmm/weights/internal/read_plan.h"
#include "vmm/weights/internal/staging.h"

namespace vmm::weights {
namespace {

using ::testing::ElementsAre;
using testing::Must;
using Reads = std::vector<TensorSetWriter::FileRead>;

TensorManifest ManifestOf(const std::vector<std::uint64_t>& sizes) {
  TensorLayout layout(TensorSetNotes{});
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Must(layout.Add(absl::StrCat("t", i), DType::kUInt8,
                    {static_cast<std::int64_t>(sizes[i])}));
  }
  return layout.manifest();
}

// Each tensor as one row, one behind the other in `file`.
Reads SideBySide(const TensorManifest& manifest, std::size_t file = 0) {
  Reads reads;
  std::uint64_t at = 100;
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const std::uint64_t extent = manifest.tensors[i].extent();
    reads.push_back({i, file, {at, extent, extent}});
    at += extent;
  }
  return reads;
}

std::vector<std::vector<std::size_t>> TensorsOf(
    const std::vector<ReadJob>& jobs) {
  std::vector<std::vector<std::size_t>> tensors;
  for (const ReadJob& job : jobs) tensors.push_back(job.tensors);
  return tensors;
}

TEST(ReadPlanTest, WhatLiesSideBySideInFileAndMemoryIsOneJob) {
  // Behind 1000 bytes the next tensor begins at 1024.
  const TensorManifest manifest = ManifestOf({512, 256, 0, 1000, 256});
  const std::vector<ReadJob> jobs =
      Must(PlanReads(manifest, SideBySide(manifest)));
  EXPECT_THAT(TensorsOf(jobs),
              ElementsAre(ElementsAre(0, 1, 3), ElementsAre(4)));
  EXPECT_EQ(jobs[0].to, 0u);
  EXPECT_EQ(jobs[0].bytes, 1768u);
  EXPECT_EQ(jobs[0].rows(), 1u);
  ASSERT_EQ(jobs[0].parts.size(), 1u);
  EXPECT_EQ(jobs[0].parts[0].offset, 100u);
  EXPECT_EQ(jobs[0].parts[0].bytes, 1768u);
}

TEST(ReadPlanTest, WhatDoesNotLieSideBySideIsNot) {
  const TensorManifest manifest = ManifestOf({256, 256, 256});
  Reads gap = SideBySide(manifest);
  ++gap[1].rows.offset;
  EXPECT_EQ(Must(PlanReads(manifest, gap)).size(), 3u);
  Reads files = SideBySide(manifest);
  files[2].file = 1;
  EXPECT_EQ(Must(PlanReads(manifest, files)).size(), 2u);
  Reads backwards = SideBySide(manifest);
  std::swap(backwards[0].rows, backwards[1].rows);
  EXPECT_EQ(Must(PlanReads(manifest, backwards)).size(), 3u);
  Reads rows = SideBySide(manifest);
  rows[1].rows.row_bytes = 128;
  EXPECT_EQ(Must(PlanReads(manifest, rows)).size(), 3u);
  rows[1].rows.pitch = 128;  // No gaps after all.
  EXPECT_EQ(Must(PlanReads(manifest, rows)).size(), 1u);
}

TEST(ReadPlanTest, TheLargestIsFirstAndOnlyOneTensorIsMoreThanAPiece) {
  const TensorManifest manifest =
      ManifestOf({256, kPiece - 256, 256, kPiece + 256, 2 * kPiece, 256, 512});
  EXPECT_THAT(TensorsOf(Must(PlanReads(manifest, SideBySide(manifest)))),
              ElementsAre(ElementsAre(4), ElementsAre(3), ElementsAre(0, 1),
                          ElementsAre(5, 6), ElementsAre(2)));
}

TEST(ReadPlanTest, PartsOfARowAreInOrderAndWithinIt) {
  const TensorManifest manifest = ManifestOf({48});
  const auto plan = [&](const Reads& reads) {
    return PlanReads(manifest, reads);
  };
  const std::vector<ReadJob> jobs = Must(
      plan({{0, 0, {10, 4, 30}}, {0, 0, {20, 0, 30}}, {0, 0, {20, 8, 30}}}));
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].parts.size(), 2u);
  EXPECT_EQ(jobs[0].row_bytes, 12u);
  EXPECT_EQ(jobs[0].rows(), 4u);
  for (const Reads& wrong :
       {Reads{{0, 0, {20, 8, 30}}, {0, 0, {10, 4, 30}}},  // Backwards.
        Reads{{0, 0, {10, 4, 30}}, {0, 0, {13, 8, 30}}},  // In each other.
        Reads{{0, 0, {10, 4, 30}}, {0, 0, {33, 8, 30}}},  // In the next row.
        Reads{{0, 0, {10, 4, 30}}, {0, 0, {20, 8, 31}}},
        Reads{{0, 0, {10, 4, 30}}, {0, 1, {20, 8, 30}}},
        Reads{{0, 0, {10, 4, 30}}, {0, 0, {20, 9, 30}}},  // Of 48 bytes.
        Reads{{0, 0, {10, 0, 30}}, {0, 0, {20, 0, 30}}},
        Reads{{0, 0, {10, 4, 30}}, {0, 0, {UINT64_MAX, 8, 30}}}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(plan(wrong).status()));
  }
}

TEST(ReadPlanTest, ATensorIsReadOnce) {
  const TensorManifest manifest = ManifestOf({256, 256, 0});
  for (const std::size_t tensor : {0u, 2u}) {
    Reads reads = SideBySide(manifest);
    reads.push_back(reads[0]);
    reads.back().tensor = tensor;
    if (tensor == 2) reads.insert(reads.begin(), reads.back());
    const absl::Status twice = PlanReads(manifest, reads).status();
    EXPECT_TRUE(absl::IsInvalidArgument(twice)) << twice;
  }
}

}  // namespace
}  // namespace vmm::weights
