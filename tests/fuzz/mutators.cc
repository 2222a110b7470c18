#include "tests/fuzz/mutators.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/unit/vmm_ticket_samples.h"

namespace vmm::fuzz {
namespace {

// Where it begins and how many bytes it has.
struct Span {
  std::size_t at;
  std::size_t size;
};

std::uint64_t Load(Input bytes, Span field) {
  std::uint64_t value = 0;
  for (std::size_t i = field.size; i > 0; --i) {
    value = value << 8 | bytes[field.at + i - 1];
  }
  return value;
}

void Store(Bytes& bytes, Span field, std::uint64_t value) {
  for (std::size_t i = 0; i < field.size; ++i, value >>= 8) {
    bytes[field.at + i] = static_cast<std::uint8_t>(value);
  }
}

// A number that lies near what `was`, near `other`, or near a limit.
std::uint64_t AnotherNumber(std::uint64_t was, std::uint64_t other,
                            Numbers& numbers) {
  constexpr std::array<std::uint64_t, 9> kTelling = {
      0, 1, 2, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, ~0ull >> 1, ~0ull};
  switch (numbers.Below(8)) {
    case 0:
      return kTelling[numbers.Below(kTelling.size())];
    case 1:
      return was + 1;
    case 2:
      return was - 1;
    case 3:
      return other;
    case 4:
      return was + other;
    case 5:
      return was << 1;
    case 6:
      return std::uint64_t{1} << numbers.Below(64);
    default:
      return was ^ std::uint64_t{1} << numbers.Below(64);
  }
}

// Leaves out one of `items`, doubles one, or has two trade places. REQUIRES: there
// is one.
template <typename Item>
void Rearrange(std::vector<Item>& items, Numbers& numbers) {
  const auto place = [&] {
    return items.begin() +
           static_cast<std::ptrdiff_t>(numbers.Below(items.size()));
  };
  switch (numbers.Below(3)) {
    case 0:
      items.erase(place());
      break;
    case 1: {
      Item copy = *place();
      items.insert(place(), std::move(copy));
      break;
    }
    default:
      std::iter_swap(place(), place());
      break;
  }
}

// A manifest in pieces: docs/wire_format.md has the bytes.
struct ManifestPieces {
  Bytes head;  // With the fingerprint.
  std::vector<Bytes> metadata;
  std::vector<Bytes> tensors;
};
constexpr std::size_t kHead = 48;
constexpr std::size_t kTensorHead = 24;
constexpr Span kTensorCount = {32, 4};
constexpr Span kMetadataCount = {36, 4};

bool Split(Input bytes, ManifestPieces& pieces) {
  if (bytes.size() < kHead + 4) return false;
  bytes.remove_suffix(4);  // The checksum.
  const auto take = [&](std::uint64_t size, Bytes& piece) {
    if (size > bytes.size()) return false;
    piece.assign(bytes.begin(),
                 bytes.begin() + static_cast<std::ptrdiff_t>(size));
    bytes.remove_prefix(size);
    return true;
  };
  const std::uint64_t tensors = Load(bytes, kTensorCount);
  const std::uint64_t metadata = Load(bytes, kMetadataCount);
  if (!take(kHead + Load(bytes, {40, 4}), pieces.head)) return false;
  for (std::uint64_t i = 0; i < metadata; ++i) {
    if (bytes.size() < 8) return false;
    const std::uint64_t size = 8 + Load(bytes, {0, 4}) + Load(bytes, {4, 4});
    if (!take(size, pieces.metadata.emplace_back())) return false;
  }
  for (std::uint64_t i = 0; i < tensors; ++i) {
    if (bytes.size() < kTensorHead) return false;
    const std::uint64_t size =
        kTensorHead + 16 * std::uint64_t{bytes[3]} + Load(bytes, {0, 2});
    if (!take(size, pieces.tensors.emplace_back())) return false;
  }
  return bytes.empty();
}

Bytes Join(ManifestPieces pieces) {
  Bytes bytes = std::move(pieces.head);
  Store(bytes, kTensorCount, pieces.tensors.size());
  Store(bytes, kMetadataCount, pieces.metadata.size());
  for (const auto* const list : {&pieces.metadata, &pieces.tensors}) {
    for (const Bytes& piece : *list) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
  }
  bytes.insert(bytes.end(), 4, 0);
  return bytes;
}

// One more dimension, or one less, with the rank put right.
void ChangeRank(Bytes& tensor, Numbers& numbers) {
  const auto shape = tensor.begin() + static_cast<std::ptrdiff_t>(kTensorHead);
  if (tensor[3] > 0 && numbers.Below(2) == 0) {
    tensor.erase(shape, shape + 16);
    --tensor[3];
  } else if (tensor[3] < 0xff) {
    Bytes dimension(16, 0);
    dimension[0] = dimension[8] = 1;
    tensor.insert(shape, dimension.begin(), dimension.end());
    ++tensor[3];
  }
}

void ChangeTensor(Bytes& tensor, std::uint64_t other, Numbers& numbers) {
  // The type, what is known of it, whose alias it is, its checksum, its place.
  std::vector<Span> fields = {{2, 1}, {4, 1}, {8, 4}, {12, 4}, {16, 8}};
  for (std::size_t i = 0; i < 2 * std::size_t{tensor[3]}; ++i) {
    fields.push_back({kTensorHead + 8 * i, 8});
  }
  if (numbers.Below(8) == 0) return ChangeRank(tensor, numbers);
  const Span field = fields[numbers.Below(fields.size())];
  Store(tensor, field, AnotherNumber(Load(tensor, field), other, numbers));
}

// Strings, numbers, words and signs, with the white space before each.
std::vector<std::string> Tokens(absl::string_view json) {
  std::vector<std::string> tokens;
  while (!json.empty()) {
    std::size_t end = 0;
    while (end < json.size() && absl::ascii_isspace(json[end])) ++end;
    if (end < json.size() && json[end] == '"') {
      for (++end; end < json.size() && json[end] != '"'; ++end) {
        if (json[end] == '\\') ++end;
      }
      ++end;
    } else if (end < json.size() && !absl::ascii_isalnum(json[end])) {
      ++end;
    } else {
      while (end < json.size() && absl::ascii_isalnum(json[end])) ++end;
    }
    end = std::min(end, json.size());
    tokens.emplace_back(json.substr(0, end));
    json.remove_prefix(end);
  }
  return tokens;
}

std::string AnotherToken(const std::vector<std::string>& tokens,
                         Numbers& numbers) {
  static const auto& others = *new std::vector<std::string>(absl::StrSplit(
      "{ } [ ] , : 0 1 -1 00 1e3 0.0 9007199254740993 18446744073709551615 "
      "18446744073709551616 true null \"\" \"\\u0000\" \"\\ud83d\\ude00\" "
      "\"\\ud83d\" \"\\ude00\" \"\xff\" \"\xc3\xa9\" \"\\\"\" \"dtype\" "
      "\"shape\" "
      "\"sh\\u0061pe\" \"data_offsets\" \"__metadata__\" \"F4\" \"BOOL\" "
      "\"C64\" "
      "\"F8_E4M3\" \"BF16\" \"I64\"",
      ' '));
  if (numbers.Below(2) == 0) return tokens[numbers.Below(tokens.size())];
  return others[numbers.Below(others.size())];
}

}  // namespace

Bytes MutateManifest(Input input, Numbers& numbers) {
  ManifestPieces pieces;
  if (!Split(input, pieces)) return Bytes(input.begin(), input.end());
  const auto tensor = [&]() -> Bytes& {
    return pieces.tensors[numbers.Below(pieces.tensors.size())];
  };
  for (std::size_t i = 0; i <= numbers.Below(4); ++i) {
    const std::size_t what = numbers.Below(8);
    if (what == 0 && !pieces.metadata.empty()) {
      Rearrange(pieces.metadata, numbers);
    } else if (what <= 2 && !pieces.tensors.empty()) {
      Rearrange(pieces.tensors, numbers);
    } else if (what <= 6 && !pieces.tensors.empty()) {
      const std::uint64_t other = Load(tensor(), {16, 8});
      ChangeTensor(tensor(), other, numbers);
    } else {
      // The generation, or the bytes of data.
      const Span field = {16 + 8 * numbers.Below(2), 8};
      Store(pieces.head, field,
            AnotherNumber(Load(pieces.head, field), 256, numbers));
    }
  }
  Bytes bytes = Join(std::move(pieces));
  testing::RepairChecksum(bytes);
  return bytes;
}

Bytes MutateSafetensors(Input input, Numbers& numbers) {
  if (input.size() <= 2) return Bytes(input.begin(), input.end());
  std::vector<std::string> tokens = Tokens(
      {reinterpret_cast<const char*>(input.data()) + 2, input.size() - 2});
  Bytes bytes = {input[0], input[1]};
  for (std::size_t i = 0; i <= numbers.Below(3) && !tokens.empty(); ++i) {
    std::string& one = tokens[numbers.Below(tokens.size())];
    std::uint64_t was = 0;
    if (numbers.Below(3) == 0) {
      Rearrange(tokens, numbers);
    } else if (absl::SimpleAtoi(one, &was) && numbers.Below(2) == 0) {
      one = absl::StrCat(AnotherNumber(was, Load(bytes, {0, 2}), numbers));
    } else {
      one = AnotherToken(tokens, numbers);
    }
  }
  if (numbers.Below(16) == 0) {
    Store(bytes, {0, 2}, AnotherNumber(Load(bytes, {0, 2}), 8, numbers));
  }
  for (const std::string& token : tokens) {
    bytes.insert(bytes.end(), token.begin(), token.end());
  }
  return bytes;
}

Bytes MutateOperations(Input input, Numbers& numbers) {
  Bytes bytes(input.begin(),
              input.begin() + static_cast<std::ptrdiff_t>(
                                  std::min<std::size_t>(2, input.size())));
  input.remove_prefix(bytes.size());
  std::vector<std::array<std::uint8_t, 4>> operations(input.size() / 4);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    std::copy_n(input.begin() + static_cast<std::ptrdiff_t>(4 * i), 4,
                operations[i].begin());
  }
  for (std::size_t i = 0; i <= numbers.Below(4) && !operations.empty(); ++i) {
    if (numbers.Below(2) == 0) {
      Rearrange(operations, numbers);
    } else {
      operations[numbers.Below(operations.size())][numbers.Below(4)] =
          static_cast<std::uint8_t>(numbers.Next());
    }
  }
  for (const auto& operation : operations) {
    bytes.insert(bytes.end(), operation.begin(), operation.end());
  }
  return bytes;
}

}  // namespace vmm::fuzz
