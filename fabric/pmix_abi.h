// What is used of libpmix, declared here: it is opened at run time and not
// needed to build. The layout is that of PMIx 3 to 5; a test compares it with
// the installed headers. Internal to fabric/pmix.cc.
//
// https://pmix.org/standard: chapters 3 (data structures) and 5 to 7.
#ifndef VMMSHARE_FABRIC_PMIX_ABI_H_
#define VMMSHARE_FABRIC_PMIX_ABI_H_

#include <cstddef>
#include <cstdint>

namespace vmm::fabric::pmix {

using Status = int;
using Rank = std::uint32_t;
using Scope = std::uint8_t;

inline constexpr Status kSuccess = 0;
inline constexpr Status kErrProcEntryNotFound = -17;
inline constexpr Status kErrTimeout = -24;
inline constexpr Status kErrUnreachable = -25;
inline constexpr Status kErrBadParameter = -27;
inline constexpr Status kErrOutOfResource = -29;
inline constexpr Status kErrNoMemory = -32;
inline constexpr Status kErrNotFound = -46;
inline constexpr Status kErrNotSupported = -47;
inline constexpr Status kErrCommFailure = -49;
inline constexpr Status kErrLostConnection = -61;
inline constexpr Status kOperationSucceeded = -157;

inline constexpr Rank kRankWildcard = UINT32_MAX - 1;
inline constexpr Scope kGlobal = 3;

inline constexpr std::uint16_t kBool = 1;
inline constexpr std::uint16_t kInt = 6;
inline constexpr std::uint16_t kUint16 = 13;
inline constexpr std::uint16_t kUint32 = 14;
inline constexpr std::uint16_t kByteObject = 27;

inline constexpr char kJobSize[] = "pmix.job.size";
inline constexpr char kLocalRank[] = "pmix.lrank";
inline constexpr char kCollectData[] = "pmix.collect";
inline constexpr char kTimeout[] = "pmix.timeout";

inline constexpr std::size_t kMaxNamespace = 255;
inline constexpr std::size_t kMaxKey = 511;

struct Proc {
  char name_space[kMaxNamespace + 1];
  Rank rank;
};

struct ByteObject {
  char* bytes;
  std::size_t size;
};

struct Value {
  std::uint16_t type;
  union {
    bool flag;
    int integer;
    std::uint16_t uint16;
    std::uint32_t uint32;
    ByteObject bytes;
    // The largest member of PMIx's union has two pointers and a character.
    void* largest[3];
  } data;
};

struct Info {
  char key[kMaxKey + 1];
  std::uint32_t flags;
  Value value;
};

using DoneCallback = void (*)(Status status, void* data);
using ValueCallback = void (*)(Status status, Value* value, void* data);

// The entry points of libpmix.
struct Table {
  Status (*PMIx_Init)(Proc* self, Info* info, std::size_t infos);
  Status (*PMIx_Finalize)(const Info* info, std::size_t infos);
  Status (*PMIx_Put)(Scope scope, const char* key, Value* value);
  Status (*PMIx_Commit)();
  Status (*PMIx_Fence_nb)(const Proc* processes, std::size_t count,
                          const Info* info, std::size_t infos,
                          DoneCallback done, void* data);
  Status (*PMIx_Get_nb)(const Proc* process, const char* key, const Info* info,
                        std::size_t infos, ValueCallback done, void* data);
  const char* (*PMIx_Error_string)(Status status);
  const char* (*PMIx_Get_version)();
};

}  // namespace vmm::fabric::pmix

#endif  // VMMSHARE_FABRIC_PMIX_ABI_H_
