// Names of kernel objects; internal to the host-memory driver on Windows.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_OBJECT_NAMES_WIN_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_OBJECT_NAMES_WIN_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace vmm::hostdriver {

// UTF-16 as ASCII text. Other characters become '?'.
std::string Narrow(std::wstring_view text);

// The name for the call that makes an object: ASCII, in this session's folder.
std::wstring LocalName(std::string_view name);

// The type ("Section") of the object behind `handle`; empty when it is no handle
// or a pseudo handle.
std::string TypeOfHandle(std::intptr_t handle);
// The full name of that object; empty, too, when it has none. REQUIRES: it is no
// pipe, of which the question can wait for ever.
std::wstring NameOfHandle(std::intptr_t handle);
// What the handle may do with its object; 0 when that cannot be told.
std::uint32_t AccessOfHandle(std::intptr_t handle);
// The bytes of a section; 0 for one that has a file behind it.
std::uint64_t SizeOfSection(std::intptr_t handle);

// The names of the sections in `folder` (a full name), also while other
// processes open and close theirs: see kMaxPasses.
std::set<std::string> SectionsIn(const std::wstring& folder);

// 64 random bits in hexadecimal digits; empty when the system has none.
std::string RandomDigits();

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_OBJECT_NAMES_WIN_H_
