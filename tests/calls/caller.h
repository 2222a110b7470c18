// A thread that makes calls of the C interface, of a kind and with arguments that
// dice choose, and checks of each whether it keeps what vmm/c/base.h promises:
//
//   - after a failure there is an error, with the same status, one line of text and
//     what to do; after a success there is none
//   - what a call makes is not NULL after a success, and NULL or 0 after a failure;
//     a structure that begins with its size is as it was
//   - NULL, and a handle of another type, are INVALID_ARGUMENT
//   - a call returns when its `timeout_ns` has passed
//   - no call is INTERNAL or UNKNOWN, but where a call of the driver or of the system
//     was made to fail
//
// One call in some has the driver's, or the system's, n-th call of this thread fail.
#ifndef VMMSHARE_TESTS_CALLS_CALLER_H_
#define VMMSHARE_TESTS_CALLS_CALLER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/time/time.h"
#include "tests/calls/world.h"
#include "vmm/c/vmmshare.h"

namespace vmm::testing {

inline constexpr std::int64_t kMillisecond = 1'000'000;
inline constexpr std::int64_t kSecond = 1'000 * kMillisecond;

// The name of a function in the text of a template's instance.
constexpr std::string_view NameIn(std::string_view text) {
  text.remove_prefix(text.find("function = "));
  text.remove_prefix(text.find("vmmshare_"));
  return text.substr(0, text.find_first_of(",;]) "));
}

class Caller {
 public:
  Caller(World& world, std::uint64_t seed);
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller();

  World& world() { return world_; }
  std::uint64_t Below(std::uint64_t end) { return engine_() % end; }
  bool OneIn(std::uint64_t n) { return Below(n) == 0; }
  // Some time to wait: none, some milliseconds, or a second.
  std::int64_t Timeout();
  const Shelf::Dice& dice() const { return dice_; }
  CUstream stream() const { return stream_; }
  // This thread's, another thread's, or one of those that no cuStreamCreate() made.
  CUstream AnyStream();

  // `handle`; one time in some NULL or one of another type. Then the next call is
  // to be INVALID_ARGUMENT.
  template <typename T>
  T* Odd(T* handle) {
    if (!OneIn(40)) return handle;
    is_odd_ = true;
    if (OneIn(2)) return nullptr;
    const void* other = static_cast<const void*>(world_.driver);
    if (static_cast<const void*>(handle) == other) other = world_.device;
    return static_cast<T*>(const_cast<void*>(other));
  }

  // Calls `function` with `args` and an error, or none.
  template <auto function, typename... Args>
  vmmshare_status Do(Args... args) {
    const Begun begun = Begin(NameIn(__PRETTY_FUNCTION__),
                              std::max({std::int64_t{0}, WaitOf(args)...}));
    const auto before = std::make_tuple(Before(args)...);
    vmmshare_error* error = Poison<vmmshare_error>();
    const bool wants_error = !OneIn(24);
    const vmmshare_status status =
        function(args..., wants_error ? &error : nullptr);
    End(begun, status, wants_error, error);
    std::apply(
        [&](const auto&... was) { (CheckOutput(status, args, was), ...); },
        before);
    return status;
  }

  // Something is not as it should be: with it, what this thread called last.
  void Find(const std::string& what);

  // Fills memory with its byte, and returns when that is done.
  void Fill(const Thing& memory, CUstream stream);
  // What its first and last pages have that Fill() did not leave there; or "".
  std::string OddByteIn(const Thing& memory);
  // Finds what that is.
  void CheckFill(const Thing& memory, const std::string& what);
  // What the test itself asks of the driver succeeds, unless its work was spoilt.
  void Expect(CUresult result, const std::string& what);

  // What the calling thread needs, each time that another one is this caller.
  void BeginOnThisThread();
  std::uint64_t calls() const { return calls_; }

 private:
  struct Begun {
    std::string_view name;
    absl::Time latest;
    bool is_odd;
  };
  template <typename T>
  static T* Poison() {
    return reinterpret_cast<T*>(std::uintptr_t{0xdead0});
  }

  Begun Begin(std::string_view name, std::int64_t wait);
  void End(const Begun& begun, vmmshare_status status, bool wants_error,
           vmmshare_error* error);
  void MayFail();
  std::uint64_t EndFailing();

  // How long an argument has a call wait; only `timeout_ns` is an int64_t.
  template <typename T>
  static std::int64_t WaitOf(T arg) {
    if constexpr (std::is_same_v<T, std::int64_t>) {
      return arg == VMMSHARE_FOREVER ? 0 : arg;
    }
    return 0;
  }

  template <typename T>
  static constexpr bool kIsMade =
      std::is_pointer_v<T>&& std::is_pointer_v<std::remove_pointer_t<T>> &&
      !std::is_const_v<std::remove_pointer_t<T>>;
  template <typename T>
  static constexpr bool kHasSize = requires(T arg) {
    arg->struct_size;
  }
  &&!std::is_const_v<std::remove_pointer_t<T>>;

  // Poisons what a call is to set, and keeps what it is not to touch.
  template <typename T>
  static auto Before(T arg) {
    if constexpr (kIsMade<T>) {
      if (arg != nullptr) {
        *arg = Poison<std::remove_pointer_t<std::remove_pointer_t<T>>>();
      }
      return 0;
    } else if constexpr (kHasSize<T>) {
      std::remove_pointer_t<T> was{};
      if (arg != nullptr) std::memcpy(&was, arg, sizeof(was));
      return was;
    } else {
      return 0;
    }
  }

  template <typename T, typename Was>
  void CheckOutput(vmmshare_status status, T arg, const Was& was) {
    if constexpr (kIsMade<T>) {
      if (arg == nullptr) return;
      using Made = std::remove_pointer_t<std::remove_pointer_t<T>>;
      if (status != VMMSHARE_OK && *arg != nullptr) {
        Find(last_ + " failed and set what it makes");
      } else if (status == VMMSHARE_OK &&
                 (*arg == nullptr || *arg == Poison<Made>())) {
        Find(last_ + " made nothing");
      }
    } else if constexpr (kHasSize<T>) {
      if (arg != nullptr && status != VMMSHARE_OK &&
          std::memcmp(&was, arg, sizeof(was)) != 0) {
        Find(last_ + " failed and wrote to a structure");
      }
    } else if constexpr (std::is_same_v<T, std::int64_t*>) {
      if (arg != nullptr && status != VMMSHARE_OK && *arg != VMMSHARE_FOREVER) {
        Find(last_ + " failed, and wants something back");
      }
    }
  }

  World& world_;
  std::mt19937_64 engine_;
  const Shelf::Dice dice_;
  CUstream stream_ = nullptr;
  bool is_odd_ = false;
  std::unique_lock<std::mutex> failing_;  // Owned while a call is to fail.
  bool fails_driver_ = false;
  std::string last_;  // The last call and what it answered.
  std::array<std::string, 12> trail_;
  std::uint64_t calls_ = 0;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CALLS_CALLER_H_
