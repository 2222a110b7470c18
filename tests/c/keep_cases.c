// A keeper, what is put into it by the C interface, and what the command-line
// tool says of it.
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "tests/c/c_test.h"

static char address[64];
static char said[1 << 16];

// Runs the tool, with "--address" and "--driver" where the keeper and the driver
// are, and keeps what goes to `stream` in `said`.
static int32_t Tool(FILE* stream, const char* const* words, int32_t count) {
  char at[sizeof(address) + 16];
  char driver[4096];
  const char* all[8];
  CHECK(count <= 6);
  snprintf(at, sizeof(at), "--address=%s", address);
  snprintf(driver, sizeof(driver), "--driver=%s", driver_path);
  for (int32_t i = 0; i < count; ++i) all[i] = words[i];
  all[count] = at;
  all[count + 1] = driver;

  FILE* const file = tmpfile();
  CHECK(file != NULL && fflush(stream) == 0);
  const int kept = dup(fileno(stream));
  CHECK(kept >= 0 && dup2(fileno(file), fileno(stream)) >= 0);
  const int32_t status = vmmshare_main(count + 2, all);
  CHECK(fflush(stream) == 0 && dup2(kept, fileno(stream)) >= 0);
  CHECK(close(kept) == 0);
  CHECK(fseek(file, 0, SEEK_SET) == 0);
  said[fread(said, 1, sizeof(said) - 1, file)] = '\0';
  CHECK(fclose(file) == 0);
  return status;
}

// `words` end with status 0, and print `part`.
static void Prints(const char* part, const char* const* words, int32_t count) {
  CHECK(Tool(stdout, words, count) == 0);
  if (strstr(said, part) != NULL) return;
  fprintf(stderr, "%s %s: no %s in %s\n", words[0], words[1], part, said);
  exit(1);
}

// They end with status 1, and `part` is the error.
static void Refuses(const char* part, const char* const* words, int32_t count) {
  CHECK(Tool(stderr, words, count) == 1);
  if (strncmp(said, "vmmshare: error: ", 17) == 0 &&
      strstr(said, part) != NULL) {
    return;
  }
  fprintf(stderr, "%s %s: no %s in %s\n", words[0], words[1], part, said);
  exit(1);
}

static pid_t keeper_process;
static void EndKeeper(void) {
  if (keeper_process > 0) kill(keeper_process, SIGKILL);
}

// Which of the signals that ask a process to end are blocked: bits.
static int Blocked(void) {
  const int asking[] = {SIGINT, SIGTERM, SIGHUP};
  sigset_t blocked;
  CHECK(pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0);
  int bits = 0;
  for (int i = 0; i < 3; ++i) bits |= sigismember(&blocked, asking[i]) << i;
  return bits;
}

// The keeper, when it listens. It runs in a child, until it is told to end.
static int StartKeeper(const char* directory) {
  int ready[2];
  CHECK(pipe(ready) == 0);
  snprintf(address, sizeof(address), "%s/keeper", directory);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char at[sizeof(address) + 16];
    snprintf(at, sizeof(at), "--address=%s", address);
    const char* const words[] = {"keep", at};
    dup2(ready[1], STDOUT_FILENO);
    close(ready[0]);
    close(ready[1]);
    const int blocked = Blocked();
    const int32_t status = vmmshare_main(2, words);
    CHECK(Blocked() == blocked);
    exit(status);
  }
  // Also where a check ends this process.
  keeper_process = child;
  CHECK(atexit(EndKeeper) == 0);
  close(ready[1]);
  FILE* const from = fdopen(ready[0], "r");
  char line[128];
  CHECK(from != NULL && fgets(line, sizeof(line), from) != NULL);
  CHECK(strncmp(line, address, strlen(address)) == 0);
  CHECK(fclose(from) == 0);
  return (int)child;
}

// Of a keeper that served, StartKeeper() sees to it.
void SignalsAreAsTheyWereAfterATool(void) {
  const char* const words[] = {"keep", "--address=/nonexistent/keeper"};
  sigset_t some;
  CHECK(sigemptyset(&some) == 0);
  CHECK(pthread_sigmask(SIG_SETMASK, &some, NULL) == 0);
  CHECK(vmmshare_main(2, words) == 1);
  CHECK(Blocked() == 0);
  // Also where the caller had blocked one.
  CHECK(sigaddset(&some, SIGTERM) == 0);
  CHECK(pthread_sigmask(SIG_SETMASK, &some, NULL) == 0);
  CHECK(vmmshare_main(2, words) == 1);
  CHECK(Blocked() == 2);
}

// A set of one tensor, of 4 int32 of which each is 7, as `name`.
static void Publish(const vmmshare_driver* driver, vmmshare_memory* memory,
                    vmmshare_keeper* keeper, const char* name) {
  vmmshare_weights_layout* layout = NULL;
  MUST(vmmshare_weights_layout_create("sha256:7", &layout, &error));
  MUST(vmmshare_weights_layout_note(layout, "step", "12", &error));
  const int64_t shape[] = {4};
  const int32_t numbers[4] = {7, 7, 7, 7};
  vmmshare_tensor tensor = {sizeof(tensor), "table"};
  tensor.dtype = VMMSHARE_DTYPE_INT32;
  tensor.rank = 1;
  tensor.shape = shape;
  MUST(vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  CHECK(vmmshare_weights_layout_size(layout) <= vmmshare_memory_size(memory));
  vmmshare_weights_writer* writer = NULL;
  MUST(vmmshare_weights_begin(driver, memory, layout, &writer, &error));
  vmmshare_weights_layout_close(layout);
  MUST(vmmshare_weights_write(writer, 0, 0, numbers, sizeof(numbers), &error));
  uint64_t generation = 0;
  MUST(vmmshare_weights_publish(writer, keeper, name, memory,
                                VMMSHARE_WEIGHTS_CHECKSUM_ALL, 10 * SECOND,
                                &generation, &error));
  CHECK(generation == 1);
  vmmshare_weights_writer_close(writer);
}

// A set of one number, of which no checksum was taken.
static void PublishScalar(const vmmshare_driver* driver,
                          vmmshare_memory* memory, vmmshare_keeper* keeper) {
  vmmshare_weights_layout* layout = NULL;
  MUST(vmmshare_weights_layout_create(NULL, &layout, &error));
  vmmshare_tensor tensor = {sizeof(tensor), "step"};
  tensor.dtype = VMMSHARE_DTYPE_INT32;
  MUST(vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  vmmshare_weights_writer* writer = NULL;
  MUST(vmmshare_weights_begin(driver, memory, layout, &writer, &error));
  vmmshare_weights_layout_close(layout);
  MUST(vmmshare_weights_publish(writer, keeper, "scalar", memory, 0,
                                10 * SECOND, NULL, &error));
  vmmshare_weights_writer_close(writer);
}

static void AskForWeights(void) {
  const char* words[4] = {"weights", "list"};
  Prints("damaged\n  generation 1, 1 tensors, 16 bytes of data\n", words, 2);
  CHECK(strstr(said,
               "llm\n  generation 1, 1 tensors, 16 bytes of data\n"
               "  fingerprint sha256:7\n") != NULL);
  // What is kept there and is no set of tensors, or none yet.
  CHECK(strstr(said, "plain") == NULL);
  words[2] = "--json";
  Prints("\"name\": \"llm\"", words, 3);
  CHECK(said[0] == '[' && strstr(said, "\"count\": 1") != NULL);

  words[1] = "show";
  words[2] = "llm";
  Prints("  step: 12\n", words, 3);
  CHECK(strstr(said, "0 int32         [4] table\n") != NULL);
  words[3] = "--json";
  Prints("\"dtype\": \"int32\"", words, 4);
  words[1] = "verify";
  Prints("llm: 1 of 1 tensors have a checksum, and it is right\n", words, 3);
  words[2] = "scalar";
  Prints("scalar: 0 of 1 tensors have a checksum", words, 3);
  words[2] = "damaged";
  Refuses("table", words, 3);
  words[2] = "none";
  Refuses("none", words, 3);
  words[1] = "show";
  words[2] = "plain";
  Refuses("no sealed tensor set", words, 3);
  words[1] = "drop";
  words[2] = "llm";
  Prints("", words, 3);
  CHECK(said[0] == '\0');
  Refuses("llm", words, 3);
}

// What nobody gets is an error.
static void PrintIntoAFullDisk(void) {
  char at[sizeof(address) + 16];
  char driver[4096];
  snprintf(at, sizeof(at), "--address=%s", address);
  snprintf(driver, sizeof(driver), "--driver=%s", driver_path);
  const char* const words[] = {"weights", "list", at, driver};
  const int kept = dup(STDOUT_FILENO);
  const int full = open("/dev/full", O_WRONLY);
  CHECK(fflush(stdout) == 0 && kept >= 0 && full >= 0);
  CHECK(dup2(full, STDOUT_FILENO) >= 0 && close(full) == 0);
  CHECK(vmmshare_main(4, words) == 1);
  CHECK(dup2(kept, STDOUT_FILENO) >= 0 && close(kept) == 0);
  clearerr(stdout);
}

// What readers would have of it is old, or nothing.
void OtherMemoryThanTheWritersIsRefused(void) {
  char directory[] = "/tmp/vmmshare-c-XXXXXX";
  CHECK(mkdtemp(directory) != NULL);
  const int child = StartKeeper(directory);
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_keeper* keeper = NULL;
  MUST(vmmshare_keeper_connect(address, 10 * SECOND, &keeper, &error));
  // What a program puts into a name ends no line of a log, and commands no terminal.
  FAILS(VMMSHARE_INVALID_ARGUMENT, "\"w\\x0avmmshare: \\x1b[31m\\xc2\\x9b\"",
        vmmshare_keeper_drop(keeper, "w\nvmmshare: \033[31m\302\233", SECOND,
                             &error));
  vmmshare_keeper* nowhere = NULL;
  FAILS(VMMSHARE_NOT_FOUND, "\\x0a",
        vmmshare_keeper_connect("/nonexistent\n/keeper", 0, &nowhere, &error));
  vmmshare_memory* const old = HostMemory(device, 1 << 16);
  vmmshare_memory* const empty = HostMemory(device, 1 << 16);
  vmmshare_memory* const memory = HostMemory(device, 1 << 16);
  Publish(driver, old, keeper, "llm");

  vmmshare_weights_layout* layout = NULL;
  MUST(vmmshare_weights_layout_create(NULL, &layout, &error));
  vmmshare_tensor tensor = {sizeof(tensor), "step"};
  tensor.dtype = VMMSHARE_DTYPE_INT32;
  MUST(vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  vmmshare_weights_writer* writer = NULL;
  MUST(vmmshare_weights_begin(driver, memory, layout, &writer, &error));
  vmmshare_weights_layout_close(layout);
  const int32_t step = 5;
  MUST(vmmshare_weights_write(writer, 0, 0, &step, sizeof(step), &error));
  uint64_t generation = 7;
  const uint32_t flags[] = {0, VMMSHARE_WEIGHTS_CHECKSUM_ALL};
  for (int i = 0; i < 2; ++i) {
    FAILS(VMMSHARE_INVALID_ARGUMENT, "Give the one that it was made with",
          vmmshare_weights_publish(writer, keeper, "llm", old, flags[i],
                                   10 * SECOND, &generation, &error));
    FAILS(VMMSHARE_INVALID_ARGUMENT, "writes to other memory",
          vmmshare_weights_publish(writer, keeper, "llm", empty, flags[i],
                                   10 * SECOND, &generation, &error));
    CHECK(generation == 0);
  }
  // It was not sealed.
  MUST(vmmshare_weights_publish(writer, keeper, "llm", memory, 0, 10 * SECOND,
                                &generation, &error));
  CHECK(generation == 2);
  vmmshare_weights_writer_close(writer);
  vmmshare_keeper_close(keeper);
  CHECK(kill(child, SIGTERM) == 0);
  Join(child);
  keeper_process = 0;
  CHECK(rmdir(directory) == 0);
  vmmshare_memory_close(memory);
  vmmshare_memory_close(empty);
  vmmshare_memory_close(old);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

void TheToolShowsWhatIsKept(void) {
  char directory[] = "/tmp/vmmshare-c-XXXXXX";
  CHECK(mkdtemp(directory) != NULL);
  const int child = StartKeeper(directory);
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_memory* const memory = HostMemory(device, 1 << 16);
  vmmshare_keeper* keeper = NULL;
  MUST(vmmshare_keeper_connect(address, 10 * SECOND, &keeper, &error));
  const char* const list[] = {"weights", "list"};
  Prints("no tensor set is kept\n", list, 2);
  vmmshare_memory* const plain = HostMemory(device, 4096);
  MUST(vmmshare_keeper_put(keeper, "plain", plain, 10 * SECOND, &error));
  MUST(vmmshare_keeper_seal(keeper, "plain", 10 * SECOND, &error));
  MUST(vmmshare_keeper_put(keeper, "plain2", plain, 10 * SECOND, &error));
  vmmshare_memory* const other = HostMemory(device, 1 << 16);
  Publish(driver, memory, keeper, "llm");
  Publish(driver, other, keeper, "damaged");
  vmmshare_memory* const third = HostMemory(device, 1 << 16);
  PublishScalar(driver, third, keeper);
  Bytes(vmmshare_memory_address(other))[5] ^= 1;
  vmmshare_text* json = NULL;
  MUST(vmmshare_keeper_list(keeper, 10 * SECOND, &json, &error));
  CHECK(strstr(vmmshare_text_get(json), "\"name\": \"llm\"") != NULL);
  vmmshare_text_free(json);
  AskForWeights();
  PrintIntoAFullDisk();
  vmmshare_keeper_close(keeper);

  CHECK(kill(child, SIGTERM) == 0);
  Join(child);
  keeper_process = 0;
  FAILS(VMMSHARE_NOT_FOUND, "",
        vmmshare_keeper_connect(address, SECOND, &keeper, &error));
  Refuses(address, list, 2);
  CHECK(rmdir(directory) == 0);
  vmmshare_memory_close(third);
  vmmshare_memory_close(other);
  vmmshare_memory_close(plain);
  vmmshare_memory_close(memory);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}
