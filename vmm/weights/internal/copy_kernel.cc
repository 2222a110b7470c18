#include "vmm/weights/internal/copy_kernel.h"

namespace vmm::weights {
namespace {

// Block b takes the tiles b, b + blocks and so on of all copies together, so that
// all end at the same time whatever the sizes are. Of which copy a tile is, it
// searches in shared memory; parameters are slow at that (measured: 1 us each).
constexpr char kText[] = R"(
.version 8.1
.target sm_70
.address_size 64

.visible .entry vmmshare_copy_many(.param .align 8 .b8 table[32708])
{
  .shared .align 4 .b8 ends[4672];
  .reg .b32 %thread, %threads, %blocks, %count, %i, %at, %value, %total, %tile;
  .reg .b32 %low, %high, %middle, %first, %step;
  .reg .b64 %table, %param, %wide, %to, %from, %bytes, %offset, %size;
  .reg .b64 %whole, %position, %stride, %source, %target, %both;
  .reg .b32 %x0, %x1, %x2, %x3;
  .reg .pred %stop, %less, %uneven;
  mov.u32 %thread, %tid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.b64 %table, table;
  ld.param.u32 %count, [table+32704];
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
  bar.sync 0;
  setp.eq.u32 %stop, %count, 0;
  @%stop bra done;
  mov.u32 %at, ends;
  mad.lo.u32 %at, %count, 4, %at;
  ld.shared.u32 %total, [%at+-4];
  mov.u32 %tile, %ctaid.x;
  mov.u32 %low, 0;
next:
  setp.ge.u32 %stop, %tile, %total;
  @%stop bra done;
  sub.u32 %high, %count, 1;
search:
  setp.ge.u32 %stop, %low, %high;
  @%stop bra found;
  add.u32 %middle, %low, %high;
  shr.u32 %middle, %middle, 1;
  mov.u32 %at, ends;
  mad.lo.u32 %at, %middle, 4, %at;
  ld.shared.u32 %value, [%at];
  setp.lt.u32 %less, %tile, %value;
  @%less mov.u32 %high, %middle;
  @!%less add.u32 %low, %middle, 1;
  bra search;
found:
  mov.u32 %first, 0;
  setp.eq.u32 %stop, %low, 0;
  @%stop bra begin;
  mov.u32 %at, ends;
  mad.lo.u32 %at, %low, 4, %at;
  ld.shared.u32 %first, [%at+-4];
begin:
  sub.u32 %first, %tile, %first;
  mul.wide.u32 %offset, %first, 16384;
  mul.wide.u32 %wide, %low, 8;
  add.u64 %param, %table, %wide;
  ld.param.u64 %to, [%param];
  ld.param.u64 %from, [%param+9344];
  ld.param.u64 %bytes, [%param+18688];
  add.u64 %to, %to, %offset;
  add.u64 %from, %from, %offset;
  sub.u64 %size, %bytes, %offset;
  min.u64 %size, %size, 16384;
  or.b64 %both, %to, %from;
  and.b64 %both, %both, 15;
  setp.ne.u64 %uneven, %both, 0;
  and.b64 %whole, %size, -16;
  @%uneven mov.u64 %whole, 0;
  mul.wide.u32 %position, %thread, 16;
  mul.wide.u32 %stride, %threads, 16;
vectors:
  setp.ge.u64 %stop, %position, %whole;
  @%stop bra rest;
  add.u64 %source, %from, %position;
  add.u64 %target, %to, %position;
  ld.global.cs.v4.u32 {%x0, %x1, %x2, %x3}, [%source];
  st.global.cs.v4.u32 [%target], {%x0, %x1, %x2, %x3};
  add.u64 %position, %position, %stride;
  bra vectors;
rest:
  cvt.u64.u32 %position, %thread;
  add.u64 %position, %position, %whole;
  cvt.u64.u32 %stride, %threads;
bytes:
  setp.ge.u64 %stop, %position, %size;
  @%stop bra copied;
  add.u64 %source, %from, %position;
  add.u64 %target, %to, %position;
  ld.global.u8 %x0, [%source];
  st.global.u8 [%target], %x0;
  add.u64 %position, %position, %stride;
  bra bytes;
copied:
  add.u32 %tile, %tile, %blocks;
  bra next;
done:
  ret;
}
)";

}  // namespace

absl::StatusOr<PieceKernel> LoadCopyKernel(const Device& device) {
  return PieceKernel::Load(device, kText, "vmmshare_copy_many");
}

}  // namespace vmm::weights
