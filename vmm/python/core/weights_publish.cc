// A set that is filled from files, and put.
#include <atomic>
#include <optional>
#include <utility>

#include "vmm/python/core/gil.h"
#include "vmm/python/core/keeper.h"
#include "vmm/python/core/safetensors.h"
#include "vmm/python/core/text.h"
#include "vmm/python/core/wait.h"
#include "vmm/python/core/weights_writer.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// Who is told how far it has come, and what came of that.
struct Told {
  nb::handle progress;
  std::optional<std::uint64_t> done = std::nullopt;  // When last told.
  std::optional<nb::python_error> raised = std::nullopt;
};

vmmshare_status Tell(void* user, std::uint64_t done, std::uint64_t total) {
  auto& told = *static_cast<Told*>(user);
  return WithGil::Run([&] {
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C.
      if (told.progress.is_none() || told.done == done) return VMMSHARE_OK;
      told.done = done;
      told.progress(done, total);
      return VMMSHARE_OK;
    } catch (nb::python_error& raised) {
      told.raised.emplace(std::move(raised));
      return VMMSHARE_CANCELLED;
    }
  });
}

}  // namespace

void ReadFiles(WeightsWriter& self, const std::vector<nb::bytes>& paths,
               const FileReads& given, std::uint32_t threads,
               nb::handle progress) {
  std::vector<const char*> names;
  for (const nb::bytes& path : paths) {
    WithoutNul(std::string(path.c_str(), path.size()));
    names.push_back(path.c_str());
  }
  // A copy: without the GIL, another thread may let go of it.
  const std::vector<vmmshare_file_read> all = given.reads;
  Told told{progress};
  auto options = Sized<vmmshare_read_options>();
  options.threads = threads;
  options.progress = &Tell;
  options.user = &told;
  const auto writer = self.handle.shared();
  vmmshare_error* error = nullptr;
  vmmshare_status status;
  {
    const WithoutGil released;
    status =
        vmmshare_weights_read_files(writer.get(), names.data(), names.size(),
                                    all.data(), all.size(), &options, &error);
  }
  if (told.raised.has_value()) {
    vmmshare_error_free(error);
    throw nb::python_error(std::move(*told.raised));
  }
  if (status != VMMSHARE_OK) Raise(status, error);
}

std::uint64_t Publish(WeightsWriter& self, nb::handle keeper,
                      const std::string& name, bool checksum_all,
                      nb::handle timeout) {
  WithoutNul(name);
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  const auto generation = std::make_shared<std::uint64_t>(0);
  const std::uint32_t flags = checksum_all ? VMMSHARE_WEIGHTS_CHECKSUM_ALL : 0u;
  // Let go of by whoever has it last: the thread, or this if there is none.
  struct Turn {
    explicit Turn(std::shared_ptr<std::atomic<bool>> of)
        : taken(std::move(of)), is_ours(!taken->exchange(true)) {}
    ~Turn() {
      if (is_ours) taken->store(false);
    }
    const std::shared_ptr<std::atomic<bool>> taken;
    const bool is_ours;
  };
  auto turn = std::make_shared<Turn>(self.publishing);
  if (!turn->is_ours) {
    Raise(VMMSHARE_FAILED_PRECONDITION, "the set is being put already",
          "Wait until that has ended.");
  }
  CallKeeper(keeper, [&](const std::shared_ptr<vmmshare_keeper>& connection) {
    MustOnAThread([connection, generation, flags, name, timeout_ns,
                   turn = std::exchange(turn, nullptr),
                   writer = self.handle.shared(),
                   memory = self.memory](vmmshare_error** error) mutable {
      const vmmshare_status status = vmmshare_weights_publish(
          writer.get(), connection.get(), name.c_str(), memory.get(), flags,
          timeout_ns, generation.get(), error);
      turn.reset();  // Before anybody hears of it.
      return status;
    });
  });
  return *generation;
}

void Seal(WeightsWriter& self, std::uint64_t generation) {
  // As it begins.
  MustOnAThread(
      [writer = self.handle.shared(), generation](vmmshare_error** error) {
        return vmmshare_weights_seal(writer.get(), generation, 0, error);
      });
}

void LoadCopying(WeightsWriter& self) {
  // As it begins: the driver may wait for what is on streams.
  MustOnAThread([writer = self.handle.shared()](vmmshare_error** error) {
    return vmmshare_weights_copy_all(writer.get(), nullptr, nullptr, 0, nullptr,
                                     0, error);
  });
}

}  // namespace vmm::python
