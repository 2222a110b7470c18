#include "vmm/weights/internal/safetensors_json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/manifest.h"

namespace vmm::weights {
namespace {

using nlohmann::json;

constexpr absl::string_view kMetadataName = "__metadata__";

// Called with what comes next; false ends it, and status() says why.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  absl::Status status() const { return status_; }
  SaidHeader TakeHeader() { return std::move(header_); }

  bool start_object(std::size_t /*elements*/) override {
    if (place_ == Place::kBefore) return GoTo(Place::kHeader);
    if (place_ != Place::kHeader) return Unexpected();
    if (name_ == kMetadataName) {
      return IsFirstMetadata() && GoTo(Place::kMetadata);
    }
    tensor_ = {.name = name_, .dtype = {}, .shape = {}, .data_offsets = {}};
    has_dtype_ = has_shape_ = has_data_offsets_ = false;
    return GoTo(Place::kTensor);
  }

  bool end_object() override {
    if (place_ != Place::kTensor) return GoTo(Place::kHeader);
    if (!has_dtype_ || !has_shape_ || !has_data_offsets_) {
      return RefuseTensor("has not all of dtype, shape and data_offsets");
    }
    header_.tensors.push_back(std::move(tensor_));
    return GoTo(Place::kHeader);
  }

  bool key(string_t& text) override {
    if (absl::StrContains(text, '\0')) return Refuse("a name has a NUL");
    if (place_ == Place::kTensor) return TakeField(text);
    name_ = std::move(text);
    return place_ != Place::kMetadata || !header_.metadata.contains(name_) ||
           Refuse(absl::StrCat("the key \"", Shown(name_),
                               "\" of __metadata__ is there twice"));
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      if (absl::StrContains(text, '\0')) return Refuse("metadata have a NUL");
      header_.metadata[std::move(name_)] = std::move(text);
      return true;
    }
    if (place_ != Place::kTensor || numbers_ != nullptr) return Unexpected();
    tensor_.dtype = std::move(text);
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (place_ != Place::kTensor || numbers_ == nullptr) return Unexpected();
    return GoTo(Place::kNumbers);
  }

  bool end_array() override { return GoTo(Place::kTensor); }

  bool number_unsigned(number_unsigned_t number) override {
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    if (place_ != Place::kNumbers || number > std::uint64_t{kMost}) {
      return Unexpected();
    }
    const std::size_t most = IsShape() ? kMaxTensorRank : 2;
    if (numbers_->size() == most) {
      return RefuseTensor(absl::StrCat(
          "has more than ", most, IsShape() ? " dimensions" : " data_offsets"));
    }
    numbers_->push_back(static_cast<std::int64_t>(number));
    return true;
  }

  bool number_integer(number_integer_t /*negative*/) override {
    return Unexpected();
  }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected();
  }
  bool boolean(bool) override { return Unexpected(); }
  bool null() override {
    // That there are none: safetensors itself takes it.
    if (place_ == Place::kHeader && name_ == kMetadataName) {
      return IsFirstMetadata();
    }
    return Unexpected();
  }
  bool binary(binary_t&) override { return Unexpected(); }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception&) override {
    return Refuse(absl::StrCat("it is no JSON at byte ", position));
  }

 private:
  enum class Place { kBefore, kHeader, kMetadata, kTensor, kNumbers };

  bool GoTo(Place place) {
    place_ = place;
    return true;
  }

  bool IsFirstMetadata() {
    return !std::exchange(has_metadata_, true) ||
           Refuse("__metadata__ are there twice");
  }

  bool IsShape() const { return numbers_ == &tensor_.shape; }
  const char* NameOfNumbers() const {
    return IsShape() ? "shape" : "data_offsets";
  }

  // A member of a tensor: `numbers_` is where its value belongs, null for the dtype.
  bool TakeField(absl::string_view field) {
    numbers_ = nullptr;
    if (field == "dtype" && !std::exchange(has_dtype_, true)) return true;
    numbers_ = &tensor_.shape;
    if (field == "shape" && !std::exchange(has_shape_, true)) return true;
    numbers_ = &tensor_.data_offsets;
    if (field == "data_offsets" && !std::exchange(has_data_offsets_, true)) {
      return true;
    }
    return RefuseTensor(
        absl::StrCat("has \"", Shown(field), "\", unknown or there twice"));
  }

  bool Refuse(absl::string_view why) {
    status_ = absl::InvalidArgumentError(why);
    return false;
  }
  bool RefuseTensor(absl::string_view why) {
    status_ = OfTensor(tensor_.name, why);
    return false;
  }

  // A value of another type than the format has in this place.
  bool Unexpected() {
    switch (place_) {
      case Place::kBefore:
        break;
      case Place::kHeader:
        return Refuse(
            absl::StrCat("\"", Shown(name_), "\": expected an object"));
      case Place::kMetadata:
        return Refuse(absl::StrCat("\"", Shown(name_),
                                   "\" of __metadata__: expected a text"));
      case Place::kTensor:
        return RefuseTensor(
            numbers_ == nullptr
                ? "needs a text as its dtype"
                : absl::StrCat("needs an array as its ", NameOfNumbers()));
      case Place::kNumbers:
        return RefuseTensor(absl::StrCat(
            "needs integers from 0 to 2^63 - 1 in its ", NameOfNumbers()));
    }
    return Refuse("expected an object");
  }

  Place place_ = Place::kBefore;
  std::string name_;  // Of a tensor, or a key of the metadata.
  SaidTensor tensor_;
  std::vector<std::int64_t>* numbers_ = nullptr;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_data_offsets_ = false;
  SaidHeader header_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<SaidHeader> ReadSafetensorsJson(absl::string_view text) {
  // For the library a NUL ends the text, and a byte order mark may begin it.
  if (absl::StrContains(text, '\0') || absl::StartsWith(text, "\xef\xbb\xbf")) {
    return absl::InvalidArgumentError(
        "it is no JSON: a NUL, or a mark of byte order");
  }
  // Writers fill up a header with spaces, of which the library keeps each.
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  HeaderReader reader;
  if (!json::sax_parse(text.begin(), text.end(), &reader)) {
    return reader.status();
  }
  return reader.TakeHeader();
}

}  // namespace vmm::weights
