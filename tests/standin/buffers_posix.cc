// A program as others write them: the driver API alone, linked by name, and one
// process a GPU. It knows neither vmmshare nor that there is no GPU.
//
//   buffers MODULE [DEVICE RANK RANKS SOCKET]
//
// The parent makes one buffer a device, all on the first, and sends each child
// their descriptors. The children stamp all buffers in turns with the kernel
// of MODULE (PTX), and each checks one. Every wait ends after a minute.
#include <cuda.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern char** environ;

namespace {

constexpr std::size_t kSize = std::size_t{4} << 20;
constexpr int kPatience = 60'000;  // Milliseconds.
constexpr int kThreads = 128;
constexpr CUmemAllocationHandleType kFd =
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

[[noreturn]] void Fail(const char* what, int value) {
  std::fprintf(stderr, "buffers: %s: %d\n", what, value);
  std::_Exit(1);
}

void Check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) Fail(call, static_cast<int>(result));
}
#define CHECK_CALL(call) Check(call, #call)

void CheckTrue(bool holds, const char* what) {
  if (!holds) Fail(what, 0);
}

// One byte and, perhaps, descriptors.
void Send(int socket, const std::vector<int>& descriptors = {}) {
  char byte = 1;
  iovec data{&byte, 1};
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data(),
                descriptors.size() * sizeof(int));
  }
  CheckTrue(sendmsg(socket, &message, MSG_NOSIGNAL) == 1, "sendmsg");
}

void Receive(int socket, std::vector<int>* descriptors = nullptr) {
  pollfd wait{socket, POLLIN, 0};
  CheckTrue(poll(&wait, 1, kPatience) == 1, "poll");
  char byte = 0;
  iovec data{&byte, 1};
  const std::size_t bytes =
      descriptors == nullptr ? 0 : descriptors->size() * sizeof(int);
  std::vector<char> control(CMSG_SPACE(bytes));
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (bytes != 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  CheckTrue(recvmsg(socket, &message, 0) == 1, "recvmsg");
  if (bytes == 0) return;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  CheckTrue(header != nullptr && header->cmsg_len == CMSG_LEN(bytes),
            "descriptors");
  std::memcpy(descriptors->data(), CMSG_DATA(header), bytes);
}

// The kernel of the module at `path`, loaded in either of two ways.
CUfunction LoadKernel(const char* path, bool from_memory) {
  CUmodule module = nullptr;
  if (from_memory) {
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::vector<char> log(1024, 'x');
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_INFO_LOG_BUFFER};
    void* values[] = {reinterpret_cast<void*>(log.size()), log.data()};
    CHECK_CALL(cuModuleLoadDataEx(&module, text.c_str(), 2, options, values));
    CheckTrue(std::strlen(log.data()) < log.size(), "the log ends");
  } else {
    CHECK_CALL(cuModuleLoad(&module, path));
  }
  CUfunction kernel = nullptr;
  CHECK_CALL(cuModuleGetFunction(&kernel, module, "stamp"));
  return kernel;
}

CUcontext MakeContext(CUdevice device) {
  CUcontext context = nullptr;
#if CUDA_VERSION >= 13000
  CHECK_CALL(cuCtxCreate(&context, nullptr, 0, device));
#else
  CHECK_CALL(cuCtxCreate(&context, 0, device));
#endif
  return context;
}

CUdeviceptr MapAll(std::vector<int> descriptors, CUdevice device) {
  CUdeviceptr base = 0;
  const std::size_t size = descriptors.size() * kSize;
  CHECK_CALL(cuMemAddressReserve(&base, size, kSize, 0, 0));
  CUdeviceptr at = base;
  for (const int descriptor : descriptors) {
    CUmemGenericAllocationHandle memory = 0;
    CHECK_CALL(cuMemImportFromShareableHandle(
        &memory,
        reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)), kFd));
    CHECK_CALL(cuMemMap(at, kSize, 0, memory, 0));
    CHECK_CALL(cuMemRelease(memory));
    close(descriptor);
    at += kSize;
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK_CALL(cuMemSetAccess(base, size, &access, 1));
  return base;
}

// What all bytes of the buffer `number` are once every rank has stamped it.
unsigned char Expected(int number, int ranks) {
  unsigned char byte = 0;
  for (int turn = 0; turn < ranks; ++turn) {
    const int rank = (number - turn + ranks) % ranks;
    byte = static_cast<unsigned char>(byte * 3 + rank + 1);
    byte = static_cast<unsigned char>(byte * 3 + 100);
  }
  return byte;
}

int RunChild(const char* module, int ordinal, int rank, int ranks, int parent) {
  CHECK_CALL(cuInit(0));
  std::vector<int> descriptors(static_cast<std::size_t>(ranks));
  Receive(parent, &descriptors);
  CUdevice device = 0;
  CHECK_CALL(cuDeviceGet(&device, ordinal));
  const CUcontext context = MakeContext(device);
  CUstream stream = nullptr;
  CHECK_CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUfunction kernel = LoadKernel(module, rank % 2 == 0);
  int blocks = 0;
  int processors = 0;
  CHECK_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel,
                                                         kThreads, 0));
  CHECK_CALL(cuDeviceGetAttribute(
      &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
  CheckTrue(blocks > 0 && processors > 0, "there is room for the kernel");
  const CUdeviceptr base = MapAll(descriptors, device);
  for (int turn = 0; turn < ranks; ++turn) {
    CUdeviceptr at =
        base + static_cast<std::size_t>((turn + rank) % ranks) * kSize;
    int count = static_cast<int>(kSize);
    char mark = static_cast<char>(rank + 1);
    void* arguments[] = {&at, &count, &mark};
    const auto grid = static_cast<unsigned int>(blocks * processors);
    CHECK_CALL(cuLaunchKernel(kernel, grid, 1, 1, kThreads, 1, 1, 0, stream,
                              arguments, nullptr));
    mark = 100;  // The first launch has its own.
    CHECK_CALL(cuLaunchKernel(kernel, grid, 1, 1, kThreads, 1, 1, 0, stream,
                              arguments, nullptr));
    CHECK_CALL(cuStreamSynchronize(stream));
    Send(parent);
    Receive(parent);
  }
  std::vector<unsigned char> bytes(kSize);
  CHECK_CALL(cuMemcpyDtoHAsync(bytes.data(),
                               base + static_cast<std::size_t>(rank) * kSize,
                               kSize, stream));
  CHECK_CALL(cuStreamSynchronize(stream));
  const unsigned char expected = Expected(rank, ranks);
  CheckTrue(std::all_of(bytes.begin(), bytes.end(),
                        [expected](unsigned char b) { return b == expected; }),
            "the buffer has every rank's stamp, in order");
  CHECK_CALL(cuStreamDestroy(stream));
  CHECK_CALL(cuCtxDestroy(context));
  CHECK_CALL(cuMemUnmap(base, static_cast<std::size_t>(ranks) * kSize));
  CHECK_CALL(cuMemAddressFree(base, static_cast<std::size_t>(ranks) * kSize));
  return 0;
}

// The contexts of all devices that reach each other, for a moment.
void EnablePeers(int devices) {
  std::vector<CUcontext> contexts;
  for (CUdevice device = 0; device < devices; ++device) {
    contexts.push_back(MakeContext(device));
    for (CUdevice other = 0; other < device; ++other) {
      int can = 0;
      CHECK_CALL(cuDeviceCanAccessPeer(&can, device, other));
      CheckTrue(can == 1, "devices reach each other");
      CHECK_CALL(cuCtxSetCurrent(contexts[device]));
      CHECK_CALL(cuCtxEnablePeerAccess(contexts[other], 0));
      CHECK_CALL(cuCtxSetCurrent(contexts[other]));
      CHECK_CALL(cuCtxEnablePeerAccess(contexts[device], 0));
    }
  }
  for (const CUcontext context : contexts) CHECK_CALL(cuCtxDestroy(context));
}

std::vector<int> ExportBuffers(int count) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = kFd;
  std::vector<int> descriptors(static_cast<std::size_t>(count), -1);
  for (int& descriptor : descriptors) {
    CUmemGenericAllocationHandle memory = 0;
    CHECK_CALL(cuMemCreate(&memory, kSize, &properties, 0));
    CHECK_CALL(cuMemExportToShareableHandle(&descriptor, memory, kFd, 0));
    CHECK_CALL(cuMemRelease(memory));
  }
  return descriptors;
}

int RunParent(const char* program, const char* module) {
  CHECK_CALL(cuInit(0));
  int ranks = 0;
  CHECK_CALL(cuDeviceGetCount(&ranks));
  EnablePeers(ranks);
  const std::vector<int> descriptors = ExportBuffers(ranks);
  std::vector<int> sockets;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2];
    CheckTrue(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "socketpair");
    std::vector<std::string> words = {program,
                                      module,
                                      std::to_string(rank),
                                      std::to_string(rank),
                                      std::to_string(ranks),
                                      std::to_string(ends[1])};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t child = 0;
    CheckTrue(posix_spawn(&child, program, nullptr, nullptr, arguments.data(),
                          environ) == 0,
              "posix_spawn");
    close(ends[1]);
    sockets.push_back(ends[0]);
    children.push_back(child);
  }
  for (const int socket : sockets) Send(socket, descriptors);
  for (const int descriptor : descriptors) close(descriptor);
  for (int turn = 0; turn < ranks; ++turn) {
    for (const int socket : sockets) Receive(socket);
    for (const int socket : sockets) Send(socket);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    if (status != 0) ++failed;
  }
  std::printf("buffers: %d processes, %d failed\n", ranks, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) return RunParent(argv[0], argv[1]);
  if (argc != 6) return 2;
  return RunChild(argv[1], std::atoi(argv[2]), std::atoi(argv[3]),
                  std::atoi(argv[4]), std::atoi(argv[5]));
}
