// A file whose close(), fstat() and fstatfs() block, as those of a FUSE mount do
// whose server does not answer: where there is no FUSE. So does the adding of
// seals, as to memory that somebody writes to from such a file.
#ifndef VMMSHARE_TESTS_SUPPORT_BLOCKING_FILE_POSIX_H_
#define VMMSHARE_TESTS_SUPPORT_BLOCKING_FILE_POSIX_H_

namespace vmm::testing {

// At most one at a time. For programs that link vmmshare_test_faults.
class BlockingFile {
 public:
  // Until its end, those calls block on whatever `fd` is a descriptor of; for 30
  // seconds, lest a test hang.
  explicit BlockingFile(int fd);
  ~BlockingFile();
  BlockingFile(const BlockingFile&) = delete;
  BlockingFile& operator=(const BlockingFile&) = delete;
};

namespace internal {
// What the calls do first.
void BlockIfMarked(int fd);
}  // namespace internal
}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_BLOCKING_FILE_POSIX_H_
