// A library that needs the one of beside_win.cc.
extern "C" __declspec(dllimport) int vmmshare_test_beside();
extern "C" __declspec(dllexport) int vmmshare_test_needing() {
  return vmmshare_test_beside();
}
