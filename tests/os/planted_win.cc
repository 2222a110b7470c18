// A library for library_win_test.cc to find, or to be kept from finding.
extern "C" __declspec(dllexport) int vmmshare_test_planted() { return 42; }
