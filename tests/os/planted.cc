// A library for library_test.cc to find, or to be kept from finding.
extern "C" __attribute__((visibility("default"))) int vmmshare_test_planted() {
  return 42;
}
