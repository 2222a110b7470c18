// Manifests and trailers of tensor sets: values, without memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/must.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "tests/unit/vmm_weights_samples.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/internal/trailer.h"
#include "vmm/weights/manifest.h"

namespace vmm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using testing::Must;
using ::testing::Optional;
using testing::SampleLayout;
using testing::SampleManifest;
using Bytes = std::vector<std::uint8_t>;

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

TEST(DTypes, HaveNamesAndSizesAndThereAreNoOthers) {
  int known = 0;
  for (int number = 0; number < 256; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (SizeOf(dtype) == 0) continue;
    ++known;
    EXPECT_EQ(Must(DTypeOf(NameOf(dtype))), dtype);
  }
  EXPECT_EQ(known, 20);
  EXPECT_EQ(NameOf(static_cast<DType>(255)), "unknown");
  const std::pair<const char*, std::uint64_t> sizes[] = {
      {"bool", 1},
      {"uint8", 1},
      {"int8", 1},
      {"uint16", 2},
      {"int16", 2},
      {"uint32", 4},
      {"int32", 4},
      {"uint64", 8},
      {"int64", 8},
      {"float16", 2},
      {"float32", 4},
      {"float64", 8},
      {"complex64", 8},
      {"complex128", 16},
      {"bfloat16", 2},
      {"float8_e4m3fn", 1},
      {"float8_e5m2", 1},
      {"float8_e8m0fnu", 1},
      {"float8_e4m3fnuz", 1},
      {"float8_e5m2fnuz", 1}};
  for (const auto& [name, size] : sizes) {
    EXPECT_EQ(SizeOf(Must(DTypeOf(name))), size) << name;
  }
  const absl::Status none = DTypeOf("float7\n").status();
  EXPECT_TRUE(absl::IsInvalidArgument(none));
  EXPECT_THAT(Text(none), AllOf(HasSubstr("float7\\n"), HasSubstr("bfloat16")));
}

TEST(TensorExtent, ReachesBehindTheLastElementAndNotBeyond63Bits) {
  using Numbers = std::vector<std::int64_t>;
  const auto extent = [](DType dtype, Numbers shape, Numbers strides) {
    TensorInfo info;
    info.dtype = dtype;
    info.shape = std::move(shape);
    info.strides = std::move(strides);
    const std::optional<std::uint64_t> found = weights::ExtentOf(info);
    EXPECT_EQ(info.extent(), found.value_or(0));
    return found;
  };
  constexpr std::int64_t kHalf = INT64_MAX / 2;
  EXPECT_THAT(extent(DType::kInt16, {}, {}), Optional(2u));
  EXPECT_THAT(extent(DType::kInt16, {3}, {4}), Optional(18u));
  EXPECT_THAT(extent(DType::kInt16, {3}, {0}), Optional(2u));
  EXPECT_THAT(extent(DType::kInt16, {1}, {4}), Optional(2u));
  EXPECT_THAT(extent(DType::kInt16, {3, 0}, {4, 1}), Optional(0u));
  EXPECT_THAT(extent(DType::kInt8, {2}, {INT64_MAX - 1}),
              Optional(std::uint64_t{INT64_MAX}));
  EXPECT_THAT(extent(DType::kInt8, {3}, {kHalf}),
              Optional(std::uint64_t{INT64_MAX}));
  EXPECT_THAT(extent(DType::kInt16, {2}, {kHalf - 1}),
              Optional(std::uint64_t{INT64_MAX - 1}));
  EXPECT_EQ(extent(DType::kInt8, {2}, {INT64_MAX}), std::nullopt);
  EXPECT_EQ(extent(DType::kInt8, {3}, {kHalf + 1}), std::nullopt);
  EXPECT_EQ(extent(DType::kInt16, {2}, {kHalf}), std::nullopt);
  EXPECT_EQ(extent(DType::kInt8, {2, 3}, {INT64_MAX, kHalf + 1}), std::nullopt);
  EXPECT_EQ(extent(DType::kInt8, {2}, {}), std::nullopt);
  EXPECT_EQ(extent(DType::kInt8, {0, -1}, {1, 1}), std::nullopt);
  EXPECT_EQ(extent(DType::kInt8, {0}, {-1}), std::nullopt);
  EXPECT_EQ(extent(static_cast<DType>(255), {2}, {1}), std::nullopt);
  EXPECT_EQ(extent(static_cast<DType>(255), {0}, {1}), std::nullopt);
}

TEST(TensorLayoutTest, PlacesTensorsSideBySide) {
  const TensorLayout layout = SampleLayout();
  const TensorManifest& manifest = layout.manifest();
  EXPECT_EQ(manifest.tensors[0].offset, 0u);
  EXPECT_EQ(manifest.tensors[0].extent(), 3200u);
  EXPECT_THAT(manifest.tensors[0].strides, ElementsAre(16, 1));
  EXPECT_EQ(manifest.tensors[1].offset, 3328u);  // The next multiple of 256.
  EXPECT_EQ(manifest.tensors[1].extent(), 2u * 3 * 4 * 4 * 4);
  EXPECT_EQ(manifest.tensors[2].extent(), 0u);
  EXPECT_EQ(manifest.tensors[3].extent(), 8u);
  EXPECT_EQ(manifest.tensors[4].offset, 0u);
  EXPECT_EQ(manifest.tensors[4].alias_of, 0u);
  EXPECT_EQ(manifest.tensors[5].offset, 320u);
  EXPECT_GE(layout.size(), manifest.data_bytes + EncodedSize(manifest) +
                               weights::kTrailerBytes);
  Must(CheckManifest(manifest));
}

TEST(TensorLayoutTest, AnAliasOfAnAliasIsOneOfTheSame) {
  TensorLayout layout = SampleLayout();
  const std::size_t again =
      Must(layout.AddAlias("again", 5, DType::kUInt8, {320}));
  EXPECT_EQ(layout.manifest().tensors[again].alias_of, 0u);
  EXPECT_EQ(layout.manifest().tensors[again].offset, 320u);
}

TEST(TensorLayoutTest, RefusesWhatNoTensorIs) {
  TensorLayout layout = SampleLayout();
  const auto code = [&layout](absl::string_view name,
                              std::vector<std::int64_t> shape,
                              std::vector<std::int64_t> strides = {}) {
    return layout
        .Add(name, DType::kFloat32, std::move(shape), std::move(strides))
        .status()
        .code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code("embed.weight", {1}), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(code("", {1}), kInvalid);
  EXPECT_EQ(code("a\nb", {1}), kInvalid);
  EXPECT_EQ(code(std::string(513, 'a'), {1}), kInvalid);
  EXPECT_EQ(code("a", {-1}), kInvalid);
  EXPECT_EQ(code("a", {2, 2}, {2}), kInvalid);
  EXPECT_EQ(code("a", {2}, {-1}), kInvalid);
  EXPECT_EQ(code("a", std::vector<std::int64_t>(33, 1)), kInvalid);
  // Products and sums that pass 64 bits, or 63.
  EXPECT_EQ(code("a", {1ll << 32, 1ll << 32}), kInvalid);
  EXPECT_EQ(code("a", {1ll << 61}), kInvalid);
  EXPECT_EQ(code("a", {3, 3}, {INT64_MAX, INT64_MAX}), kInvalid);
  EXPECT_EQ(code("a", {5}, {1ll << 62}), kInvalid);
  EXPECT_EQ(code("a", {INT64_MAX, 2}, {1, INT64_MAX}), kInvalid);
  // However little it takes, as elements are in one place.
  EXPECT_EQ(code("a", {1ll << 40, 1ll << 40}, {0, 0}), kInvalid);
  EXPECT_EQ(code("a", {1ll << 61}, {0}), kInvalid);
  // One without elements has none, whatever its strides are; its other lengths
  // are what any tensor may have.
  EXPECT_EQ(code("zero", {1ll << 30, 0, 1ll << 30}, {INT64_MAX, 1, INT64_MAX}),
            absl::StatusCode::kOk);
  EXPECT_EQ(code("a", {INT64_MAX, 0, INT64_MAX}, {1, 1, 1}), kInvalid);
  EXPECT_TRUE(
      absl::IsNotFound(layout.AddAlias("b", 99, DType::kUInt8, {1}).status()));
  for (const auto& [shape, offset] :
       std::vector<std::pair<std::int64_t, std::uint64_t>>{
           {3201, 0}, {3200, 1}, {1, 3200}, {1, UINT64_MAX}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        layout.AddAlias("b", 0, DType::kUInt8, {shape}, {}, offset).status()))
        << shape << " at " << offset;
  }
  // Nothing of all that is in it.
  EXPECT_EQ(layout.manifest().tensors.size(), 7u);
  Must(CheckManifest(layout.manifest()));
}

TEST(TensorLayoutTest, TakesWhatJustFits) {
  // The factors of 2^63 - 1, for strides that are exactly the largest product.
  constexpr std::int64_t kSeventh = INT64_MAX / 7;
  static_assert(7 * kSeventh == INT64_MAX);
  EXPECT_THAT(weights::DenseStrides({1, 7, kSeventh}),
              Optional(ElementsAre(INT64_MAX, kSeventh, 1)));
  EXPECT_THAT(weights::DenseStrides({1, 7, kSeventh + 1}), Eq(std::nullopt));
  EXPECT_THAT(weights::DenseStrides({3, 0, 2}), Optional(ElementsAre(2, 2, 1)));
  TensorLayout layout;
  const std::string longest(kMaxTensorName, 'a');
  Must(layout.Add(longest, DType::kUInt8, {1}));
  EXPECT_EQ(layout.manifest().tensors[0].name, longest);
  Must(layout.Add("b", DType::kUInt8,
                  std::vector<std::int64_t>(kMaxTensorRank, 1)));
  Must(layout.Add("c", DType::kUInt8, {7, kSeventh}, {0, 0}));
  Must(CheckManifest(layout.manifest()));
  EXPECT_EQ(Must(DecodeManifest(EncodeManifest(layout.manifest()))),
            layout.manifest());
}

TEST(TensorLayoutTest, HasRoomForNoMoreThanHalfOfWhatANumberHolds) {
  constexpr std::int64_t kQuarter = std::int64_t{1} << 61;
  TensorLayout layout;
  Must(layout.Add("a", DType::kUInt8, {kQuarter}));
  const absl::Status refused =
      layout.Add("b", DType::kUInt8, {kQuarter + 1}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("too many behind"));
  EXPECT_EQ(layout.manifest().tensors.size(), 1u);
  Must(layout.Add("c", DType::kUInt8, {1}));
}

TEST(TensorLayoutTest, TakesAQuarterOfAMillionTensorsAndNotAMillion) {
  TensorLayout layout;
  for (std::size_t i = 0; i < kMaxTensors; ++i) {
    Must(layout.Add(absl::StrCat("t", i), DType::kUInt8, {}));
  }
  const absl::Status full = layout.Add("one more", DType::kUInt8, {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(Text(full), HasSubstr("262144"));
  EXPECT_EQ(
      Must(DecodeManifest(EncodeManifest(layout.manifest()))).tensors.size(),
      kMaxTensors);
}

TEST(TensorManifestTest, ComesBackAsItWasWritten) {
  for (const TensorManifest& manifest : {TensorManifest(), SampleManifest()}) {
    const Bytes bytes = EncodeManifest(manifest);
    EXPECT_EQ(bytes.size(), EncodedSize(manifest));
    EXPECT_EQ(Must(DecodeManifest(bytes)), manifest);
  }
}

TEST(TensorManifestTest, EveryFlippedBitAndEveryCutIsSeen) {
  Bytes bytes = EncodeManifest(SampleManifest());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_FALSE(DecodeManifest(bytes).ok()) << bit;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeManifest(absl::MakeConstSpan(bytes).first(size)).ok());
  }
}

// What a checksum does not find: its maker put it there.
TEST(TensorManifestTest, WithAGoodChecksumIsStillChecked) {
  const auto status = [](const std::function<void(Bytes&)>& spoil) {
    Bytes bytes = EncodeManifest(SampleManifest());
    spoil(bytes);
    testing::RepairChecksum(bytes);
    return DecodeManifest(bytes).status();
  };
  const auto at = [&](std::size_t place, std::uint8_t value) {
    return status([=](Bytes& bytes) { bytes[place] = value; });
  };
  EXPECT_TRUE(absl::IsInvalidArgument(at(0, 'X')));
  EXPECT_TRUE(absl::IsUnimplemented(at(8, 2)));
  EXPECT_TRUE(absl::IsInvalidArgument(at(8, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(at(10, 1)));
  // Lengths that lie: nothing is allocated for what is not there.
  EXPECT_TRUE(absl::IsInvalidArgument(at(34, 3)));       // 196,614 tensors.
  EXPECT_TRUE(absl::IsResourceExhausted(at(35, 0xff)));  // 4 thousand million.
  EXPECT_TRUE(absl::IsResourceExhausted(at(38, 0xff)));  // Metadata.
  EXPECT_TRUE(absl::IsInvalidArgument(at(43, 0xff)));    // The fingerprint.
  EXPECT_TRUE(absl::IsInvalidArgument(at(44, 1)));
  // Data that ends before the tensors do.
  EXPECT_TRUE(absl::IsInvalidArgument(at(24, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(at(31, 0xff)));
  // Bytes behind the last tensor.
  EXPECT_TRUE(absl::IsInvalidArgument(
      status([](Bytes& bytes) { bytes.insert(bytes.end() - 4, 0); })));
}

// Each breach of a rule is found in a value, and so in bytes.
TEST(TensorManifestTest, MustMakeSense) {
  const auto refused = [](const std::function<void(TensorManifest&)>& spoil) {
    TensorManifest manifest = SampleManifest();
    spoil(manifest);
    return CheckManifest(manifest);
  };
  struct Row {
    const char* what;
    std::function<void(TensorManifest&)> spoil;
    const char* says;
  };
  const Row rows[] = {
      {"names twice", [](auto& m) { m.tensors[1].name = "empty"; },
       "two tensors have the name \"empty\""},
      {"names twice, far apart",
       [](auto& m) { m.tensors[5].name = "embed.weight"; },
       "two tensors have the name \"embed.weight\""},
      {"no name", [](auto& m) { m.tensors[1].name = ""; }, "name of 0 bytes"},
      {"overlap", [](auto& m) { m.tensors[1].offset = 1024; },
       "before the end of another one"},
      {"outside", [](auto& m) { m.tensors[3].offset += 256; }, "outside"},
      {"far outside", [](auto& m) { m.tensors[3].offset = ~std::uint64_t{7}; },
       "outside"},
      {"crooked", [](auto& m) { m.tensors[3].offset += 1; }, "no multiple"},
      {"overflow",
       [](auto& m) {
         m.tensors[1].shape = {INT64_MAX, 2, 2, 2};
       },
       "63 bits"},
      {"overflow of elements in one place",
       [](auto& m) {
         m.tensors[1].shape = {1ll << 40, 1ll << 40};
         m.tensors[1].strides = {0, 0};
       },
       "more elements than fit 63 bits"},
      {"no dtype, and no elements",
       [](auto& m) { m.tensors[2].dtype = static_cast<DType>(255); },
       "a dtype that there is not"},
      {"another rank", [](auto& m) { m.tensors[1].shape = {2}; },
       "number of strides"},
      {"alias of itself", [](auto& m) { m.tensors[4].alias_of = 4; },
       "expected one before it"},
      {"alias of a later one", [](auto& m) { m.tensors[4].alias_of = 5; },
       "expected one before it"},
      {"alias of nothing", [](auto& m) { m.tensors[4].alias_of = 1u << 31; },
       "expected one before it"},
      {"alias of an alias", [](auto& m) { m.tensors[5].alias_of = 4; },
       "which is one itself"},
      {"alias outside", [](auto& m) { m.tensors[5].offset = 3200; },
       "whose alias it is"},
      {"alias before", [](auto& m) { m.tensors[5].alias_of = 1; },
       "whose alias it is"},
      {"checksum of an alias", [](auto& m) { m.tensors[4].checksum = 1; },
       "alias with a checksum"},
      {"fingerprint", [](auto& m) { m.fingerprint = "\x1b[31m"; },
       "fingerprint"},
      {"key", [](auto& m) { m.metadata[""] = "x"; }, "metadata"},
      {"value", [](auto& m) { m.metadata["k"] = std::string("\0", 1); },
       "metadata"},
  };
  Must(refused([](TensorManifest&) {}));
  for (const Row& row : rows) {
    const absl::Status status = refused(row.spoil);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << row.what << status;
    EXPECT_THAT(Text(status), HasSubstr(row.says)) << row.what;
  }
}

// A tensor of `size` bytes at `offset`.
TensorInfo BytesAt(const std::string& name, std::uint64_t offset,
                   std::int64_t size,
                   std::optional<std::uint32_t> alias_of = std::nullopt) {
  TensorInfo info;
  info.name = name;
  info.shape = {size};
  info.strides = {1};
  info.offset = offset;
  info.alias_of = alias_of;
  return info;
}

TEST(TensorManifestTest, TensorsMayTouchAndNotOverlap) {
  TensorManifest touching;
  touching.data_bytes = 512;
  touching.tensors = {
      BytesAt("a", 0, 256),          BytesAt("b", 256, 256),
      BytesAt("none", 512, 0),       BytesAt("all", 256, 256, 1),
      BytesAt("none of", 512, 0, 1), BytesAt("last", 511, 1, 1)};
  Must(CheckManifest(touching));
  EXPECT_EQ(Must(DecodeManifest(EncodeManifest(touching))), touching);
  const auto refused = [&](std::size_t tensor, std::uint64_t offset) {
    TensorManifest manifest = touching;
    manifest.tensors[tensor].offset = offset;
    return absl::IsInvalidArgument(CheckManifest(manifest));
  };
  EXPECT_TRUE(refused(1, 255));
  EXPECT_TRUE(refused(1, 257));
  EXPECT_TRUE(refused(2, 511));
  EXPECT_TRUE(refused(2, 513));
  EXPECT_TRUE(refused(3, 255));
  EXPECT_TRUE(refused(4, 255));
  EXPECT_TRUE(refused(5, 255));
  // Of the first: behind it, and within the second.
  TensorManifest behind = touching;
  behind.tensors[5].alias_of = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckManifest(behind)));
  TensorManifest room = touching;
  room.data_bytes = 1024;
  Must(CheckManifest(room));
  ++room.tensors[3].offset;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckManifest(room)));
  TensorManifest cut = touching;
  --cut.data_bytes;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckManifest(cut)));
}

TEST(TensorManifestTest, TakesAsMuchAsItsHeaderSaysAndNoMore) {
  constexpr auto kOk = absl::StatusCode::kOk;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kTooMany = absl::StatusCode::kResourceExhausted;
  const auto code = [](const std::function<void(TensorManifest&)>& change) {
    TensorManifest manifest;
    change(manifest);
    const absl::StatusCode found = CheckManifest(manifest).code();
    // What is large is not written here.
    if (found == kOk && EncodedSize(manifest) < 1 << 20) {
      EXPECT_EQ(Must(DecodeManifest(EncodeManifest(manifest))), manifest);
    }
    return found;
  };
  for (const std::size_t more : {0, 1}) {
    const absl::StatusCode invalid = more == 0 ? kOk : kInvalid;
    const absl::StatusCode too_many = more == 0 ? kOk : kTooMany;
    EXPECT_EQ(code([&](auto& m) { m.data_bytes = weights::kMaxBytes + more; }),
              invalid);
    EXPECT_EQ(code([&](auto& m) {
                m.fingerprint = std::string(kMaxFingerprint + more, 'a');
              }),
              invalid);
    EXPECT_EQ(code([&](auto& m) {
                m.metadata[std::string(kMaxMetadataKey + more, 'a')] = "b";
              }),
              invalid);
    EXPECT_EQ(code([&](auto& m) {
                for (std::size_t i = 0; i < kMaxMetadata + more; ++i) {
                  m.metadata[absl::StrCat(i)] = "";
                }
              }),
              too_many);
    // With its head, a key and a checksum, the largest there is.
    EXPECT_EQ(code([&](auto& m) {
                m.metadata["a"] =
                    std::string(kMaxManifestBytes - 48 - 8 - 1 - 4 + more, 'a');
              }),
              too_many);
    // One that alone is larger than all may be is called wrong.
    EXPECT_EQ(code([&](auto& m) {
                m.metadata["a"] = std::string(kMaxManifestBytes + more, 'a');
              }),
              more == 0 ? kTooMany : kInvalid);
    EXPECT_EQ(DecodeManifest(Bytes(kMaxManifestBytes + more)).status().code(),
              more == 0 ? kInvalid : kTooMany);
  }
  EXPECT_EQ(code([](auto& m) { m.tensors.resize(kMaxTensors + 1); }), kTooMany);
}

// As the whole of them would be told, before there is one too many.
TEST(TensorManifestTest, AKeyAndItsValueAreCheckedAlone) {
  constexpr auto kOk = absl::StatusCode::kOk;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kTooMany = absl::StatusCode::kResourceExhausted;
  TensorManifest manifest;
  const auto code = [&](const std::string& key, absl::string_view value) {
    return weights::CheckNote(manifest, key, value).code();
  };
  EXPECT_EQ(code("", "1"), kInvalid);
  EXPECT_EQ(code("\xc3\xbc", "1"), kInvalid);
  EXPECT_EQ(code(std::string(kMaxMetadataKey + 1, 'a'), "1"), kInvalid);
  EXPECT_EQ(code("a", absl::string_view("\0", 1)), kInvalid);
  for (std::size_t i = 0; i < kMaxMetadata; ++i) {
    EXPECT_EQ(code(absl::StrCat(i), "\xc3\xbc"), kOk);
    manifest.metadata[absl::StrCat(i)] = "";
  }
  EXPECT_EQ(code("0", "another value"), kOk);
  EXPECT_EQ(code("one more", ""), kTooMany);
}

// Bytes with a checksum that fits, which no manifest has.
TEST(TensorManifestTest, OfOneTensorSaysWhatIsWrongWithItsFields) {
  TensorManifest one;
  one.data_bytes = 1;
  one.tensors = {BytesAt("a", 0, 1)};
  one.tensors[0].shape = {};
  one.tensors[0].strides = {};
  const Bytes good = EncodeManifest(one);
  ASSERT_EQ(good.size(), 48u + 24 + 1 + 4);
  EXPECT_EQ(Must(DecodeManifest(good)), one);
  const auto with = [&](const std::vector<std::pair<int, int>>& changes) {
    Bytes bytes = good;
    for (const auto& [at, value] : changes) {
      bytes[at] = static_cast<std::uint8_t>(value);
    }
    testing::RepairChecksum(bytes);
    return DecodeManifest(bytes);
  };
  const auto words = [&](const std::vector<std::pair<int, int>>& changes) {
    const absl::Status status = with(changes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return Text(status);
  };
  const std::string cannot = "a tensor's field has a value that it cannot have";
  for (const int at : {53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63}) {
    EXPECT_THAT(words({{at, 1}}), HasSubstr(cannot)) << at;
  }
  for (const int flags : {4, 8, 16, 32, 64, 128}) {
    EXPECT_THAT(words({{52, flags}}), HasSubstr(cannot)) << flags;
  }
  EXPECT_THAT(words({{52, 1}}), HasSubstr("expected one before it"));
  EXPECT_EQ(Must(with({{52, 2}})).tensors[0].checksum, 0u);
  EXPECT_EQ(Must(with({{52, 2}, {60, 9}})).tensors[0].checksum, 9u);
  EXPECT_TRUE(absl::IsUnimplemented(with({{50, 255}}).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(with({{51, 33}}).status()));
  EXPECT_THAT(words({{51, 32}, {48, 0}}), HasSubstr("it is cut"));
  EXPECT_THAT(words({{51, 1}}), HasSubstr("it is cut"));
  EXPECT_THAT(words({{48, 2}}), HasSubstr("it is cut"));
  EXPECT_THAT(words({{48, 0}}), HasSubstr("longer than it says"));
  // More tensors than its bytes can hold, and fewer than it holds.
  EXPECT_THAT(words({{32, 2}}), HasSubstr("it is cut"));
  EXPECT_THAT(words({{32, 0}}), HasSubstr("longer than it says"));
  // Metadata and a fingerprint where there are none.
  EXPECT_THAT(words({{36, 1}}), HasSubstr("it is cut"));
  EXPECT_THAT(words({{40, 26}}), HasSubstr("it is cut"));
  // Nothing behind the dimensions, where the name should be.
  TensorManifest nameless = one;
  nameless.tensors[0] = BytesAt("a", 0, 1);
  Bytes bytes = EncodeManifest(nameless);
  bytes[48] = 0;
  bytes.erase(bytes.end() - 5);
  testing::RepairChecksum(bytes);
  EXPECT_THAT(Text(DecodeManifest(bytes).status()),
              HasSubstr("name of 0 bytes"));
  // Shorter than the shortest.
  for (std::size_t size = 14; size < 52; ++size) {
    Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    testing::RepairChecksum(cut);
    EXPECT_THAT(Text(DecodeManifest(cut).status()),
                HasSubstr(absl::StrCat("in ", size, " bytes")));
  }
}

TEST(TensorManifestTest, MetadataStandByKeyEachOnce) {
  TensorManifest manifest;
  manifest.metadata = {{"b", "1"}, {"d", "2"}};
  const Bytes good = EncodeManifest(manifest);
  const auto with_second_key = [&](char key) {
    Bytes bytes = good;
    bytes[48 + 10 + 8] = static_cast<std::uint8_t>(key);
    testing::RepairChecksum(bytes);
    return DecodeManifest(bytes);
  };
  EXPECT_EQ(Must(with_second_key('d')), manifest);
  EXPECT_EQ(Must(with_second_key('c')).metadata.at("c"), "2");
  for (const char key : {'a', 'b'}) {
    EXPECT_THAT(Text(with_second_key(key).status()),
                HasSubstr("its metadata are not by key"));
  }
}

TEST(ShownText, IsCutWhereItIsLong) {
  EXPECT_EQ(weights::Shown(std::string(80, 'a')), std::string(80, 'a'));
  EXPECT_EQ(weights::Shown(std::string(81, 'a')), std::string(80, 'a') + "...");
}

TEST(TensorTrailer, LeadsToAManifestWithinTheMemory) {
  const weights::Trailer trailer{.manifest_offset = 512, .manifest_bytes = 100};
  const Bytes bytes = weights::EncodeTrailer(trailer);
  EXPECT_EQ(bytes.size(), weights::kTrailerBytes);
  EXPECT_EQ(Must(weights::DecodeTrailer(bytes, 652)), trailer);
  for (std::uint64_t size : {0u, 39u, 512u, 651u}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(weights::DecodeTrailer(bytes, size).status()))
        << size;
  }
  for (const weights::Trailer& far :
       {weights::Trailer{UINT64_MAX, 1}, weights::Trailer{1, UINT64_MAX},
        weights::Trailer{UINT64_MAX - 30, 30}, weights::Trailer{613, 0}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        weights::DecodeTrailer(weights::EncodeTrailer(far), 652).status()));
  }
}

TEST(TensorTrailer, MemoryWithoutOneHoldsNoSet) {
  Bytes bytes = weights::EncodeTrailer({.manifest_offset = 0});
  const absl::Status none =
      weights::DecodeTrailer(Bytes(weights::kTrailerBytes), 4096).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(none));
  EXPECT_THAT(Text(none), HasSubstr("no sealed tensor set"));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_FALSE(weights::DecodeTrailer(bytes, 4096).ok()) << bit;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
  }
  bytes[8] = 2;
  EXPECT_TRUE(
      absl::IsUnimplemented(weights::DecodeTrailer(bytes, 4096).status()));
}

}  // namespace
}  // namespace vmm
