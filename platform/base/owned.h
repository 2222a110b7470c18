// Owned<Traits>: the one owner of an operating-system or driver handle.
//
// Every handle in vmmshare that must be given back is held by an Owned: file
// descriptors, libraries, physical memory, reserved addresses. It moves and
// never copies, and there is no implicit conversion from or to the raw value,
// so that a descriptor cannot be mistaken for a number.
//
// A Traits class says what the raw value is:
//
//   struct DirectoryTraits {
//     using Value = DIR*;
//     static Value Nothing() { return nullptr; }  // The empty value.
//     static bool Holds(Value v) { return v != nullptr; }  // Must it close?
//     static void Close(Value v) { closedir(v); }  // Only if Holds(v).
//   };
//   using OwnedDirectory = Owned<DirectoryTraits>;
//
// Thread-compatible: calls on one object need external ordering.
#ifndef VMMSHARE_PLATFORM_BASE_OWNED_H_
#define VMMSHARE_PLATFORM_BASE_OWNED_H_

#include <utility>

namespace vmm::platform {

template <typename Traits>
class Owned {
 public:
  using Value = typename Traits::Value;

  // Owns nothing.
  Owned() : value_(Traits::Nothing()) {}

  // Takes ownership of `value`, which the caller must not close any more.
  static Owned Adopt(Value value) {
    Owned owned;
    owned.value_ = std::move(value);
    return owned;
  }

  Owned(Owned&& other) noexcept
      : value_(std::exchange(other.value_, Traits::Nothing())) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      Reset();
      value_ = std::exchange(other.value_, Traits::Nothing());
    }
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Reset(); }

  // Whether there is something to close.
  bool has_value() const { return Traits::Holds(value_); }

  // The raw value, still owned by this object.
  const Value& get() const { return value_; }

  // Gives up ownership: the caller must close what is returned.
  [[nodiscard]] Value Relinquish() && {
    return std::exchange(value_, Traits::Nothing());
  }

  // Closes what is owned, if anything. Owns nothing afterwards.
  void Reset() {
    if (has_value()) {
      // Emptied first: a Close that re-enters must not close twice.
      Traits::Close(std::exchange(value_, Traits::Nothing()));
    }
  }

 private:
  Value value_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_OWNED_H_
