// Scenes: what two processes do together, and where either of them is killed.
//
// Each part is a function that returns OK when all went well, or the first
// error. It gives back what it has in either case, and checks what survived: an
// EXPECT_ that fails fails the test in whichever process it is.
#ifndef VMMSHARE_TESTS_KILL_SCENES_H_
#define VMMSHARE_TESTS_KILL_SCENES_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/kill/party.h"

namespace vmm::testing {

struct Scene {
  const char* name;
  const char* words;  // What happens.
  absl::Status (*owner)(Party& me);
  absl::Status (*importer)(Party& me);
};

// All of them.
const std::vector<Scene>& Scenes();
const Scene& FindScene(const std::string& name);

// Memory of its own, by ticket and by a connection.
absl::Status OwnPublished(Party& me);
absl::Status ImportPublished(Party& me);
absl::Status OwnSent(Party& me);
absl::Status ImportSent(Party& me);
// Memory that is released and restored at the same addresses.
absl::Status OwnRestorable(Party& me);
absl::Status ImportRestorable(Party& me);
// A block of a pool: freed when it was given back, or before.
absl::Status OwnBlock(Party& me);
absl::Status ImportBlock(Party& me);
absl::Status OwnBlockFreedEarly(Party& me);
absl::Status ImportBlockFreedEarly(Party& me);
// Two fences, by which streams and hosts wait for each other.
absl::Status OwnFences(Party& me);
absl::Status ImportFences(Party& me);
// A ring, with items on their way.
absl::Status WriteRing(Party& me);
absl::Status ReadRing(Party& me);
// A keeper, and one who has memory kept.
absl::Status RunKeeper(Party& me);
absl::Status UseKeeper(Party& me);
// A keeper with a tensor set, and one who replaces it.
absl::Status RunWeights(Party& me);
absl::Status ReplaceWeights(Party& me);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_KILL_SCENES_H_
