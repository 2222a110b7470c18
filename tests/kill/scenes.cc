#include "tests/kill/scenes.h"

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"

namespace vmm::testing {

const std::vector<Scene>& Scenes() {
  static const auto* const scenes = new std::vector<Scene>{
      {"Ticket", "an allocation, opened by its ticket string", &OwnPublished,
       &ImportPublished},
      {"Transfer", "an allocation, sent over a connection", &OwnSent,
       &ImportSent},
      {"Restorable", "an allocation, released and restored by both",
       &OwnRestorable, &ImportRestorable},
      {"Pool", "a block of a pool, freed when it has been given back",
       &OwnBlock, &ImportBlock},
      {"PoolFreed", "a block of a pool, freed while the importer has it",
       &OwnBlockFreedEarly, &ImportBlockFreedEarly},
      {"Fence", "two fences, signalled and waited for by streams and hosts",
       &OwnFences, &ImportFences},
      {"Ring", "a ring of two buffers with items on their way", &WriteRing,
       &ReadRing},
      {"Keeper", "a keeper, and a client that creates, seals, locks and drops",
       &RunKeeper, &UseKeeper},
      {"Weights", "a keeper with a tensor set, which a client replaces",
       &RunWeights, &ReplaceWeights},
  };
  return *scenes;
}

const Scene& FindScene(const std::string& name) {
  for (const Scene& scene : Scenes()) {
    if (scene.name == name) return scene;
  }
  platform::Die(absl::StrCat("there is no scene ", name));
}

}  // namespace vmm::testing
