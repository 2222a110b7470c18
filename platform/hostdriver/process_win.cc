#include <windows.h>

#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "platform/hostdriver/memory_os.h"

namespace vmm::hostdriver {

std::uint64_t UserId() {
  // The last part of the user's SID, which tells the users of a machine apart.
  HANDLE token = nullptr;
  if (OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token) == 0) return 0;
  DWORD size = 0;
  GetTokenInformation(token, TokenUser, nullptr, 0, &size);
  std::vector<std::uint64_t> buffer(size / sizeof(std::uint64_t) + 1);
  std::uint64_t id = 0;
  if (GetTokenInformation(token, TokenUser, buffer.data(), size, &size) != 0) {
    const PSID sid = reinterpret_cast<TOKEN_USER*>(buffer.data())->User.Sid;
    const UCHAR parts = *GetSidSubAuthorityCount(sid);
    if (parts > 0) id = *GetSidSubAuthority(sid, parts - 1);
  }
  CloseHandle(token);
  return id;
}

// There is no fork. At exit the system ends all other threads before a library
// hears of it, whatever locks they hold: there is nothing left to wait for, and
// nothing that may be touched.
void WatchProcess(void (*)(), void (*)()) {}

bool StartThread(std::function<void()> main) {
  try {
    std::thread(std::move(main)).detach();
  } catch (const std::system_error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace vmm::hostdriver
