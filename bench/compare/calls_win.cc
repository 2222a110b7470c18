#include "bench/compare/calls.h"

namespace bench::compare {

bool StartSystemCallWatch() { return false; }
void StopSystemCallWatch() {}
void ArmSystemCallWatch() {}
bool DisarmSystemCallWatch() { return false; }

}  // namespace bench::compare
