#include "vmm/weights/internal/checksum_kernel.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "platform/base/crc32c.h"
#include "platform/base/status_macros.h"

namespace vmm::weights {
namespace {

// What a warp takes at once: 32 rows of 512 bytes, 16 of each a lane.
constexpr int kTilePower = 14;
constexpr std::uint64_t kTile = std::uint64_t{1} << kTilePower;
constexpr int kRow = 512;
constexpr int kLanes = 32;
constexpr int kVector = 16;
constexpr unsigned int kThreads = 1024;
constexpr unsigned int kBlocksOfMultiprocessor = 2;

// A register of a CRC is a polynomial over two elements, its highest bit the
// constant term, and a byte of 0 makes it x^8 as large, modulo this.
constexpr std::uint32_t kModulus = 0x82f63b78u;
constexpr std::uint32_t kOne = 0x80000000u;

constexpr std::uint32_t TimesX(std::uint32_t value) {
  return value >> 1 ^ ((value & 1) != 0 ? kModulus : 0);
}
constexpr std::uint32_t OverX(std::uint32_t value) {
  return (value & kOne) == 0 ? value << 1 : (value ^ kModulus) << 1 | 1;
}
constexpr std::uint32_t Times(std::uint32_t left, std::uint32_t right) {
  std::uint32_t product = 0;
  for (int i = 0; i < 32; ++i) {
    product ^= (right & kOne) != 0 ? left : 0;
    left = TimesX(left);
    right <<= 1;
  }
  return product;
}
constexpr std::uint32_t Power(std::uint32_t base, int exponent) {
  std::uint32_t power = kOne;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power = Times(power, base);
    base = Times(base, base);
  }
  return power;
}
// What `bytes` bytes of 0 make of a register, and what takes it back.
constexpr std::uint32_t Over(int bytes) {
  return Power(TimesX(kOne), 8 * bytes);
}
constexpr std::uint32_t Back(int bytes) {
  return Power(OverX(kOne), 8 * bytes);
}
static_assert(Times(Over(1234), Back(1234)) == kOne);

constexpr platform::Crc32cShift kOverTile =
    platform::MakeCrc32cShift(kTilePower);

// Each lane goes down its column as if it were all there is, by looking up each of
// its 16 bytes in a table that takes it over a row; then it is moved to where its
// last 16 bytes are, and all are added. A tile that ends early is taken as if
// bytes of 0 followed. `to` are the registers, begun at 0, of a piece's tiles. Of
// which piece a tile is, is counted on: a warp's tiles come in order.
constexpr char kHead[] = R"(
.version 8.1
.target sm_70
.address_size 64

.func (.reg .b32 %product) vmmshare_times(.reg .b32 %a, .reg .b32 %b)
{
  .reg .b32 %left, %right, %i, %mask;
  .reg .pred %more;
  mov.u32 %left, %a;
  mov.u32 %right, %b;
  mov.u32 %product, 0;
  mov.u32 %i, 32;
again:
  shr.s32 %mask, %right, 31;
  and.b32 %mask, %mask, %left;
  xor.b32 %product, %product, %mask;
  shl.b32 %right, %right, 1;
  and.b32 %mask, %left, 1;
  neg.s32 %mask, %mask;
  and.b32 %mask, %mask, 0x82f63b78;
  shr.u32 %left, %left, 1;
  xor.b32 %left, %left, %mask;
  sub.u32 %i, %i, 1;
  setp.ne.u32 %more, %i, 0;
  @%more bra again;
  ret;
}
)";

constexpr char kBegin[] = R"(
.visible .entry vmmshare_crc32c_many(.param .align 8 .b8 table[32708])
{
  .shared .align 4 .b8 ends[4672];
  .shared .align 4 .b8 lookup[16384];
  .reg .b32 %thread, %threads, %blocks, %count, %i, %at, %value, %total, %tile;
  .reg .b32 %lane, %warp, %step, %low, %first, %row, %state, %factor, %back;
  .reg .b32 %x0, %x1, %x2, %x3, %k;
  .reg .b64 %table, %param, %wide, %to, %from, %bytes, %offset, %size;
  .reg .b64 %whole, %position, %source, %past;
  .reg .pred %stop, %less, %uneven, %is_first;
  mov.u32 %thread, %tid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.b64 %table, table;
  ld.param.u32 %count, [table+32704];
  setp.eq.u32 %stop, %count, 0;
  @%stop bra done;
  mov.u32 %i, %thread;
fill:
  setp.ge.u32 %stop, %i, %count;
  @%stop bra filled;
  mul.wide.u32 %wide, %i, 4;
  add.u64 %param, %table, %wide;
  ld.param.u32 %value, [%param+28032];
  mov.u32 %at, ends;
  mad.lo.u32 %at, %i, 4, %at;
  st.shared.u32 [%at], %value;
  add.u32 %i, %i, %threads;
  bra fill;
filled:
  mov.u32 %i, %thread;
make:
  setp.ge.u32 %stop, %i, 4096;
  @%stop bra made;
  shr.u32 %at, %i, 10;
  mul.wide.u32 %wide, %at, 4;
  mov.b64 %source, over;
  add.u64 %source, %source, %wide;
  ld.const.u32 %factor, [%source];
  shr.u32 %at, %i, 8;
  and.b32 %at, %at, 3;
  shl.b32 %at, %at, 3;
  and.b32 %value, %i, 255;
  shl.b32 %value, %value, %at;
  call.uni (%value), vmmshare_times, (%value, %factor);
  mov.u32 %at, lookup;
  mad.lo.u32 %at, %i, 4, %at;
  st.shared.u32 [%at], %value;
  add.u32 %i, %i, %threads;
  bra make;
made:
  bar.sync 0;
  mov.u32 %at, ends;
  mad.lo.u32 %at, %count, 4, %at;
  ld.shared.u32 %total, [%at+-4];
  and.b32 %lane, %thread, 31;
  shr.u32 %warp, %thread, 5;
  shr.u32 %step, %threads, 5;
  mul.lo.u32 %step, %step, %blocks;
  mov.u32 %value, %ctaid.x;
  mad.lo.u32 %tile, %warp, %blocks, %value;
  mul.wide.u32 %wide, %lane, 4;
  mov.b64 %source, back;
  add.u64 %source, %source, %wide;
  ld.const.u32 %back, [%source];
  mov.u32 %low, 0;
  mov.u32 %first, 0;
next:
  setp.ge.u32 %stop, %tile, %total;
  @%stop bra done;
walk:
  mov.u32 %at, ends;
  mad.lo.u32 %at, %low, 4, %at;
  ld.shared.u32 %value, [%at];
  setp.lt.u32 %less, %tile, %value;
  @%less bra found;
  mov.u32 %first, %value;
  add.u32 %low, %low, 1;
  bra walk;
found:
  sub.u32 %value, %tile, %first;
  mul.wide.u32 %offset, %value, 16384;
  mul.wide.u32 %wide, %low, 8;
  add.u64 %param, %table, %wide;
  ld.param.u64 %to, [%param];
  ld.param.u64 %from, [%param+9344];
  ld.param.u64 %bytes, [%param+18688];
  mul.wide.u32 %wide, %value, 4;
  add.u64 %to, %to, %wide;
  add.u64 %from, %from, %offset;
  sub.u64 %size, %bytes, %offset;
  min.u64 %size, %size, 16384;
  and.b64 %wide, %from, 15;
  setp.ne.u64 %uneven, %wide, 0;
  and.b64 %whole, %size, -16;
  @%uneven mov.u64 %whole, 0;
  mul.wide.u32 %position, %lane, 16;
  mov.u32 %state, 0;
  mov.u32 %row, 0;
rows:
  add.u64 %source, %from, %position;
  mov.u32 %x0, 0;
  mov.u32 %x1, 0;
  mov.u32 %x2, 0;
  mov.u32 %x3, 0;
  setp.lt.u64 %less, %position, %whole;
  @%less ld.global.cs.v4.u32 {%x0, %x1, %x2, %x3}, [%source];
  @%less bra loaded;
  setp.ge.u64 %stop, %position, %size;
  @%stop bra loaded;
  mov.u32 %k, 16;
bytes:
  sub.u32 %k, %k, 1;
  cvt.u64.u32 %wide, %k;
  add.u64 %past, %position, %wide;
  setp.ge.u64 %stop, %past, %size;
  add.u64 %past, %source, %wide;
  mov.u32 %value, 0;
  @!%stop ld.global.u8 %value, [%past];
  shf.l.wrap.b32 %x3, %x2, %x3, 8;
  shf.l.wrap.b32 %x2, %x1, %x2, 8;
  shf.l.wrap.b32 %x1, %x0, %x1, 8;
  shl.b32 %x0, %x0, 8;
  or.b32 %x0, %x0, %value;
  setp.ne.u32 %stop, %k, 0;
  @%stop bra bytes;
loaded:
  bar.warp.sync 0xffffffff;
  xor.b32 %x0, %x0, %state;
  mov.u32 %state, 0;
)";

constexpr char kEnd[] = R"(
  add.u64 %position, %position, 512;
  add.u32 %row, %row, 1;
  setp.lt.u32 %less, %row, 32;
  @%less bra rows;
  call.uni (%state), vmmshare_times, (%state, %back);
  shfl.sync.bfly.b32 %value, %state, 16, 31, 0xffffffff;
  xor.b32 %state, %state, %value;
  shfl.sync.bfly.b32 %value, %state, 8, 31, 0xffffffff;
  xor.b32 %state, %state, %value;
  shfl.sync.bfly.b32 %value, %state, 4, 31, 0xffffffff;
  xor.b32 %state, %state, %value;
  shfl.sync.bfly.b32 %value, %state, 2, 31, 0xffffffff;
  xor.b32 %state, %state, %value;
  shfl.sync.bfly.b32 %value, %state, 1, 31, 0xffffffff;
  xor.b32 %state, %state, %value;
  setp.eq.u32 %is_first, %lane, 0;
  @%is_first st.global.u32 [%to], %state;
  add.u32 %tile, %tile, %step;
  bra next;
done:
  ret;
}
)";

std::string Numbers(absl::string_view name,
                    absl::Span<const std::uint32_t> numbers) {
  return absl::StrCat(".const .align 4 .u32 ", name, "[", numbers.size(),
                      "] = {", absl::StrJoin(numbers, ", "), "};\n");
}

std::string MakeText() {
  // For each of a lane's 4 words, and for each lane.
  std::array<std::uint32_t, kVector / 4> over{};
  for (std::size_t word = 0; word < over.size(); ++word) {
    over[word] = Over(kRow - 4 * static_cast<int>(word));
  }
  std::array<std::uint32_t, kLanes> back{};
  for (std::size_t lane = 0; lane < back.size(); ++lane) {
    back[lane] = Back(kVector * static_cast<int>(lane));
  }
  std::string text =
      absl::StrCat(kHead, Numbers("over", over), Numbers("back", back), kBegin);
  for (int byte = 0; byte < kVector; ++byte) {
    absl::StrAppend(&text, "  bfe.u32 %at, %x", byte / 4, ", ", byte % 4 * 8,
                    ", 8;\n  mov.u32 %value, lookup;\n"
                    "  mad.lo.u32 %at, %at, 4, %value;\n"
                    "  ld.shared.u32 %value, [%at+",
                    byte * 1024, "];\n  xor.b32 %state, %state, %value;\n");
  }
  absl::StrAppend(&text, kEnd);
  return text;
}

const char* Text() {
  static const std::string* const text = new std::string(MakeText());
  return text->c_str();
}

// The registers of a range's tiles, put together.
class Sum {
 public:
  void Add(std::uint32_t tile) {
    state_ = platform::Apply(kOverTile, state_) ^ tile;
  }
  // REQUIRES: all tiles of as many bytes were added.
  std::uint32_t Of(std::uint64_t bytes) const {
    const auto missing = static_cast<int>((kTile - bytes % kTile) % kTile);
    return ~(missing == 0 ? state_ : Times(state_, Back(missing)));
  }

 private:
  std::uint32_t state_ = 0xffffffffu;
};

constexpr std::uint64_t Tiles(std::uint64_t bytes) {
  return (bytes + kTile - 1) / kTile;
}

}  // namespace

absl::StatusOr<ChecksumKernel> ChecksumKernel::Load(const Device& device) {
  ASSIGN_OR_RETURN(PieceKernel kernel,
                   PieceKernel::Load(device, {.ptx = Text(),
                                              .name = "vmmshare_crc32c_many",
                                              .tile = kTile,
                                              .threads = kThreads,
                                              .blocks_of_multiprocessor =
                                                  kBlocksOfMultiprocessor}));
  return ChecksumKernel(device.driver(), std::move(kernel));
}

absl::StatusOr<std::vector<std::uint32_t>> ChecksumKernel::Take(
    absl::Span<const DeviceBytes> ranges,
    absl::Span<std::uint32_t> pinned) const {
  std::vector<Sum> sums(ranges.size());
  // What is under way, and of which range each register is.
  std::vector<DevicePiece> pieces;
  std::vector<std::size_t> owners;
  std::size_t used = 0;
  const auto take = [&]() -> absl::Status {
    const absl::Status launched = kernel_.Run(nullptr, pieces);
    // Also after an error: the device may still write there.
    const CUresult r = driver_->cuStreamSynchronize(nullptr);
    RETURN_IF_ERROR(launched);
    if (r != CUDA_SUCCESS) return driver_.Error(r, "cuStreamSynchronize(0)");
    const std::uint32_t* next = pinned.data();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      for (std::uint64_t left = Tiles(pieces[i].bytes); left > 0; --left) {
        sums[owners[i]].Add(*next++);
      }
    }
    pieces.clear();
    owners.clear();
    used = 0;
    return absl::OkStatus();
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (std::uint64_t done = 0; done < ranges[i].bytes;) {
      if (used == pinned.size()) RETURN_IF_ERROR(take());
      const std::uint64_t bytes =
          std::min(ranges[i].bytes - done, (pinned.size() - used) * kTile);
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's own type.
      const auto to = reinterpret_cast<CUdeviceptr>(pinned.data() + used);
      pieces.push_back({to, ranges[i].at + done, bytes});
      owners.push_back(i);
      used += static_cast<std::size_t>(Tiles(bytes));
      done += bytes;
    }
  }
  if (!pieces.empty()) RETURN_IF_ERROR(take());
  std::vector<std::uint32_t> checksums;
  checksums.reserve(ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    checksums.push_back(sums[i].Of(ranges[i].bytes));
  }
  return checksums;
}

}  // namespace vmm::weights
