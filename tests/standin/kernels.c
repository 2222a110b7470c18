/* The kernels of buffers_posix.cc, in a library that VMMSHARE_HOST_KERNELS
   names: the program itself knows nothing of the host-memory driver. */
#include "platform/hostdriver/host_kernels.h"

void vmmshareHostKernels(VmmshareHostAddKernel add);

/* stamp(unsigned char* bytes, int count, char mark): each byte becomes three
   times itself and the mark, so that the order of stamps shows. */
static void Stamp(const VmmshareHostLaunch* launch, void* const* arguments) {
  unsigned long long address = *(const unsigned long long*)arguments[0];
  size_t left = (size_t) * (const int*)arguments[1];
  const unsigned char mark = *(const unsigned char*)arguments[2];
  while (left > 0) {
    size_t size = left;
    size_t i;
    unsigned char* const bytes = launch->memory(launch, address, &size, 1);
    if (bytes == NULL) return;
    for (i = 0; i < size; ++i) {
      bytes[i] = (unsigned char)(bytes[i] * 3 + mark);
    }
    address += size;
    left -= size;
  }
}

void vmmshareHostKernels(VmmshareHostAddKernel add) {
  static const size_t kSizes[] = {sizeof(unsigned long long), sizeof(int),
                                  sizeof(char)};
  add("stamp", &Stamp, kSizes, sizeof(kSizes) / sizeof(kSizes[0]));
}
