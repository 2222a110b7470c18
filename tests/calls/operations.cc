#include "tests/calls/operations.h"

#include <algorithm>
#include <cstring>

namespace vmm::testing {

void DoSomething(Caller& caller) {
  static const std::vector<Operation> all = [] {
    std::vector<Operation> each;
    for (auto* of : {&MemoryOperations, &SharingOperations, &PoolOperations,
                     &PoolStreamOperations, &ImportedPoolOperations,
                     &FenceOperations, &RingOperations, &RestorableOperations,
                     &KeeperOperations, &HookOperations}) {
      const std::vector<Operation> some = of();
      each.insert(each.end(), some.begin(), some.end());
    }
    return each;
  }();
  static const std::uint64_t sum = [] {
    std::uint64_t weights = 0;
    for (const Operation& each : all) weights += each.weight;
    return weights;
  }();
  std::uint64_t left = caller.Below(sum);
  for (const Operation& each : all) {
    if (left < each.weight) return each.run(caller);
    left -= each.weight;
  }
}

void Post(Caller& caller, Offered what, const Offer& offer) {
  caller.world().board.Post(what, offer, caller.Below(Board::kPlaces));
}

std::optional<Offer> Read(Caller& caller, Offered what) {
  // Those that are offered fill the places only after a while.
  for (int i = 0; i < 4; ++i) {
    std::optional<Offer> offer =
        caller.world().board.Read(what, caller.Below(Board::kPlaces));
    if (offer) return offer;
  }
  return std::nullopt;
}

Offer OfferOf(const std::string& text, std::uint8_t fill, std::uint64_t size) {
  Offer offer;
  std::strncpy(offer.text.data(), text.c_str(), offer.text.size() - 1);
  offer.fill = fill;
  offer.size = size;
  return offer;
}

std::string TextOf(Caller& caller, const Offer& offer) {
  std::string text = offer.text.data();
  if (text.empty() || !caller.OneIn(30)) return text;
  switch (caller.Below(3)) {
    case 0:
      text.resize(caller.Below(text.size()));
      break;
    case 1:
      text[caller.Below(text.size())] = '!';
      break;
    default:
      text += 'A';
  }
  return text;
}

void CheckText(Caller& caller, vmmshare_status status, vmmshare_text* text) {
  if (status != VMMSHARE_OK) return;
  if (vmmshare_text_get(text) == nullptr) caller.Find("a text is NULL");
  vmmshare_text_free(text);
}

}  // namespace vmm::testing
