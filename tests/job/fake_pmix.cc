#include "tests/job/fake_pmix.h"

#include <cstddef>
#include <cstring>

namespace {

using vmm::fabric::pmix::DoneCallback;
using vmm::fabric::pmix::Info;
using vmm::fabric::pmix::Proc;
using vmm::fabric::pmix::Rank;
using vmm::fabric::pmix::Scope;
using vmm::fabric::pmix::Status;
using vmm::fabric::pmix::Value;
using vmm::fabric::pmix::ValueCallback;
namespace pmix = vmm::fabric::pmix;
using vmm::testing::FakePmix;

FakePmix& Pmix() {
  static auto* const pmix = new FakePmix;
  return *pmix;
}

// Fills in `value`, whose bytes are those of `bytes`.
Status LookUp(const Proc& process, const std::string& key, Value* value,
              std::string* bytes) {
  const FakePmix& pmix = Pmix();
  if (key == pmix::kJobSize) {
    if (process.rank != pmix::kRankWildcard) return pmix::kErrBadParameter;
    value->type = pmix.size_type;
    value->data.uint32 = pmix.size;
    return pmix::kSuccess;
  }
  if (key == pmix::kLocalRank) {
    if (pmix.local_rank_answer != pmix::kSuccess) return pmix.local_rank_answer;
    value->type = pmix.local_rank_type;
    value->data.uint16 = pmix.local_rank;
    return pmix::kSuccess;
  }
  const auto found = pmix.values.find({process.rank, key});
  if (found == pmix.values.end()) return pmix::kErrNotFound;
  *bytes = found->second;
  value->type = pmix.value_type;
  value->data.bytes = {bytes->data(), bytes->size()};
  return pmix::kSuccess;
}

}  // namespace

extern "C" {

FakePmix* vmmshare_test_pmix() { return &Pmix(); }

// Looks at nothing of the test's once that is told that this is under way.
Status PMIx_Init(Proc* self, Info*, std::size_t) {
  std::strcpy(self->name_space, "job");
  self->rank = Pmix().rank;
  const Status answer = Pmix().init;
  const std::function<void()> tell = Pmix().in_init;
  if (tell) tell();
  return answer;
}

Status PMIx_Finalize(const Info*, std::size_t) {
  if (Pmix().in_finalize) Pmix().in_finalize();
  return pmix::kSuccess;
}

Status PMIx_Put(Scope scope, const char* key, Value* value) {
  if (scope != pmix::kGlobal || value->type != pmix::kByteObject) {
    return pmix::kErrBadParameter;
  }
  if (Pmix().put != pmix::kSuccess) return Pmix().put;
  Pmix().values[{Pmix().rank, key}] =
      std::string(value->data.bytes.bytes, value->data.bytes.size);
  return pmix::kSuccess;
}

Status PMIx_Commit() {
  ++Pmix().commits;
  return Pmix().commit;
}

Status PMIx_Fence_nb(const Proc*, std::size_t, const Info* info,
                     std::size_t infos, DoneCallback done, void* data) {
  // Without this the others' values are not there after it.
  if (infos < 1 || std::strcmp(info[0].key, pmix::kCollectData) != 0 ||
      info[0].value.type != pmix::kBool || !info[0].value.data.flag) {
    return pmix::kErrBadParameter;
  }
  Pmix().timeout.reset();
  if (infos > 1) {
    if (infos > 2 || std::strcmp(info[1].key, pmix::kTimeout) != 0 ||
        info[1].value.type != pmix::kInt) {
      return pmix::kErrBadParameter;
    }
    Pmix().timeout = info[1].value.data.integer;
  }
  const FakePmix::Call& call = Pmix().fence;
  if (call.asked != pmix::kSuccess) return call.asked;
  if (call.answer.has_value()) {
    done(*call.answer, data);
  } else {
    Pmix().held.push_back([=] { done(pmix::kSuccess, data); });
  }
  return pmix::kSuccess;
}

Status PMIx_Get_nb(const Proc* process, const char* key, const Info*,
                   std::size_t, ValueCallback done, void* data) {
  ++Pmix().gets;
  const FakePmix::Call& call = Pmix().get;
  if (call.asked != pmix::kSuccess) return call.asked;
  if (!call.answer.has_value()) {
    // As the real one, which has not copied the key.
    Pmix().held.push_back([=] {
      Pmix().key_when_called_back = key;
      done(pmix::kSuccess, nullptr, data);
    });
    return pmix::kSuccess;
  }
  Value value{};
  std::string bytes;
  Status answer = *call.answer;
  if (answer == pmix::kSuccess) answer = LookUp(*process, key, &value, &bytes);
  done(answer, answer == pmix::kSuccess ? &value : nullptr, data);
  return pmix::kSuccess;
}

const char* PMIx_Error_string(Status) { return "IN-ITS-WORDS"; }
const char* PMIx_Get_version() { return Pmix().version; }

}  // extern "C"
