#include "vmm/weights/internal/checksum_text.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "vmm/weights/internal/crc32c_polynomial.h"

namespace vmm::weights {
namespace {

constexpr int kRow = 512;
constexpr int kLanes = 32;
constexpr int kVector = 16;  // Bytes of a row that a lane takes.
static_assert(kLanes * kVector == kRow &&
              kLanes * kRow == 1 << kChecksumTilePower);

// Each lane goes down its column as if it were all there is, by looking up each of
// its 16 bytes in a table that takes it over a row; then it is moved to where its
// last 16 bytes are, and all are added. Of which piece a tile is, is counted on: a
// warp's tiles come in order.
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

}  // namespace

const char* ChecksumText() {
  static const std::string* const text = new std::string(MakeText());
  return text->c_str();
}

}  // namespace vmm::weights
