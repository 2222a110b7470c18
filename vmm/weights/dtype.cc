// What elements there are.
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/manifest.h"

namespace vmm {
namespace {

struct Row {
  DType dtype;
  absl::string_view name;
  std::uint64_t size;
};
constexpr std::array<Row, 20> kRows = {{
    {DType::kBool, "bool", 1},
    {DType::kUInt8, "uint8", 1},
    {DType::kInt8, "int8", 1},
    {DType::kUInt16, "uint16", 2},
    {DType::kInt16, "int16", 2},
    {DType::kUInt32, "uint32", 4},
    {DType::kInt32, "int32", 4},
    {DType::kUInt64, "uint64", 8},
    {DType::kInt64, "int64", 8},
    {DType::kFloat16, "float16", 2},
    {DType::kFloat32, "float32", 4},
    {DType::kFloat64, "float64", 8},
    {DType::kComplex64, "complex64", 8},
    {DType::kComplex128, "complex128", 16},
    {DType::kBFloat16, "bfloat16", 2},
    {DType::kFloat8E4M3FN, "float8_e4m3fn", 1},
    {DType::kFloat8E5M2, "float8_e5m2", 1},
    {DType::kFloat8E8M0FNU, "float8_e8m0fnu", 1},
    {DType::kFloat8E4M3FNUZ, "float8_e4m3fnuz", 1},
    {DType::kFloat8E5M2FNUZ, "float8_e5m2fnuz", 1},
}};

const Row* Find(DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

}  // namespace

absl::string_view NameOf(DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? "unknown" : row->name;
}

std::uint64_t SizeOf(DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? 0 : row->size;
}

absl::StatusOr<DType> DTypeOf(absl::string_view name) {
  std::string expected;
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
    absl::StrAppend(&expected, expected.empty() ? "" : ", ", row.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype \"", weights::Shown(name),
                   "\" is not known; expected one of ", expected));
}

}  // namespace vmm
