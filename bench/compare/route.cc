#include "bench/compare/route.h"

#include <algorithm>
#include <utility>

#include "platform/base/status_macros.h"

namespace bench::compare {

absl::Status Owner::ExportLot(absl::Span<const Block> blocks,
                              absl::Span<Outgoing> out) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    RETURN_IF_ERROR(Export(blocks[i], &out[i]));
  }
  return absl::OkStatus();
}

absl::Status Importer::ImportLot(absl::Span<Incoming> in, Steps* steps,
                                 absl::Span<Block> out) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    absl::StatusOr<Block> block = Import(std::move(in[i]), steps);
    if (!block.ok()) {
      while (i > 0) Close(out[--i]).IgnoreError();
      return block.status();
    }
    out[i] = *block;
  }
  return absl::OkStatus();
}

absl::Span<const Route* const> Routes() {
  static constexpr const Route* kAll[] = {
      &routes::kLegacyIpc,       &routes::kLegacyIpcOwnBlock,
      &routes::kLegacyIpcCached, &routes::kLegacyIpcArena,
      &routes::kStreamPoolIpc,   &routes::kBareCalls,
      &routes::kDedicated,       &routes::kPool,
      &routes::kPoolOfGib};
  return kAll;
}

const Route* FindRoute(const std::string& name) {
  for (const Route* route : Routes()) {
    if (name == route->name) return route;
  }
  return nullptr;
}

std::uint32_t IndexOf(const Route& route) {
  const auto all = Routes();
  return static_cast<std::uint32_t>(std::find(all.begin(), all.end(), &route) -
                                    all.begin());
}

}  // namespace bench::compare
