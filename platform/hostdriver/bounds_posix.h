// Upper bounds of the bytes in use of each device, in a file that the processes
// of an instance share.
//
// Every process adds to a bound before it creates memory and nobody subtracts,
// so that a create need not look at all processes each time; when a bound does
// not do, it is replaced by the exact count. The file goes with the last
// process that uses it.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_BOUNDS_POSIX_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_BOUNDS_POSIX_H_

#include <cstdint>

namespace vmm::hostdriver {

// How an attempt to lock ended.
enum class Locked { kYes, kNo, kTimedOut };

// The right to read and change the bounds, among all processes. Among the
// threads of this one, the driver's lock gives it.
class BoundsLock {
 public:
  BoundsLock();
  ~BoundsLock();
  BoundsLock(const BoundsLock&) = delete;
  BoundsLock& operator=(const BoundsLock&) = delete;

  // The lock is another process's for longer than kLockPatience: that process
  // is stopped, and nothing may be counted.
  bool timed_out() const { return locked_ == Locked::kTimedOut; }
  // False when nothing is known: the file is new, or cannot be had at all.
  bool Read(int slot, std::uint64_t* bound) const;
  void Write(int slot, std::uint64_t bound) const;

 private:
  Locked locked_;
};

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_BOUNDS_POSIX_H_
