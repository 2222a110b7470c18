// What another library needs, and finds beside it if it looks there.
extern "C" __declspec(dllexport) int vmmshare_test_beside() { return 42; }
