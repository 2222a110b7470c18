// What the classes of the module hold. A shared handle is closed when the last
// object that needs it goes.
#ifndef VMMSHARE_VMM_PYTHON_CORE_HANDLES_H_
#define VMMSHARE_VMM_PYTHON_CORE_HANDLES_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vmm/c/vmmshare.h"
#include "vmm/python/core/error.h"
#include "vmm/python/core/forked.h"
#include "vmm/python/core/gil.h"
#include "vmm/python/core/object.h"
#include "vmm/python/core/pool_closers.h"
#include "vmm/python/core/storage.h"

namespace vmm::python {

// Lets go of these, one after the other, without the GIL: closing may wait.
template <typename... T>
void LetGo(std::shared_ptr<T>... handles) {
  const WithoutGil released;
  (handles.reset(), ...);
}

// A handle that is let go of without the GIL.
template <typename T>
class Holder {
 public:
  explicit Holder(std::shared_ptr<T> handle) : handle_(std::move(handle)) {}
  ~Holder() { Close(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  void Close() {
    if (handle_ != nullptr) LetGo(Take());
  }
  // For closing it elsewhere; null when it was closed.
  std::shared_ptr<T> Take() { return std::move(handle_); }
  bool is_closed() const { return handle_ == nullptr; }
  bool is_the_parents() const { return !made_.is_still_here(); }

  // Raises when it was closed, or is the parent's. A copy: without the GIL, or
  // in a call back into Python, another thread may close this.
  std::shared_ptr<T> shared() const {
    if (handle_ == nullptr) {
      Raise(VMMSHARE_FAILED_PRECONDITION, "the object was closed",
            "Use it before close(), or before its `with` block ends.");
    }
    made_.CheckStillHere();
    return handle_;
  }
  // While the GIL is held.
  T* get() const { return shared().get(); }

 private:
  std::shared_ptr<T> handle_;
  MadeHere made_;
};

// A struct of the C interface, of which nothing but its size is said.
template <typename T>
T Sized() {
  T made{};
  made.struct_size = sizeof(made);
  return made;
}

// `handle`, which goes before what it needs.
template <typename T, typename Needed>
std::shared_ptr<T> Keeping(std::shared_ptr<Needed> needed,
                           std::shared_ptr<T> handle) {
  struct Both {
    std::shared_ptr<Needed> needed;
    std::shared_ptr<T> handle;  // Goes first.
  };
  const auto both =
      std::make_shared<Both>(Both{std::move(needed), std::move(handle)});
  return {both, both->handle.get()};
}

// Must() without the GIL: `call` may neither raise nor ask a Holder.
template <typename Call>
void MustWithoutGil(const Call& call) {
  Must([&](vmmshare_error** error) {
    const WithoutGil released;
    return call(error);
  });
}

// Makes a handle by `call(&handle, &error)`, as MustWithoutGil() calls it.
template <typename T, typename Close, typename Call>
std::shared_ptr<T> MakeClosedBy(Close close, const Call& call) {
  T* made = nullptr;
  MustWithoutGil([&](vmmshare_error** error) { return call(&made, error); });
  return std::shared_ptr<T>(made, std::move(close));
}
template <typename T, typename Call>
std::shared_ptr<T> Make(void (*close)(T*), const Call& call) {
  return MakeClosedBy<T>(close, call);
}

// A class that keeps more than its handle has a Close() of its own.
template <typename T>
void CloseAll(T& self) {
  if constexpr (requires { self.Close(); }) {
    self.Close();
  } else {
    self.handle.Close();
  }
}

// close(), closed, and `with`, which every class of a handle has.
template <typename T>
void DefineClosing(nanobind::class_<T>& type, const char* what) {
  type.def("close", &CloseAll<T>, what)
      .def_prop_ro("closed",
                   [](const T& self) { return self.handle.is_closed(); })
      .def("__enter__",
           [](Object<T> self) {
             // Raises if it was closed.
             nanobind::cast<const T&>(self).handle.shared();
             return self;
           })
      .def("__exit__", [](T& self, nanobind::args) { CloseAll(self); });
}

// For repr(), which raises nothing: the class, and `more(handle)` of what can be
// used.
template <typename T, typename More>
std::string Described(const char* name, const Holder<T>& handle,
                      const More& more) {
  const std::string begin = std::string("<vmmshare.") + name;
  if (handle.is_closed()) return begin + ", closed>";
  if (handle.is_the_parents()) return begin + ", the parent's>";
  return begin + more(handle.get()) + ">";
}

// The driver that is used where none is named: set_driver()'s, or else the
// system's, which is loaded by the first call that needs it.
std::shared_ptr<vmmshare_driver> DefaultDriver();

// Of a Device, an ordinal, or the text of a UUID.
std::shared_ptr<vmmshare_device> DeviceOf(nanobind::handle device);

// Every one that this process sees, by ordinal.
std::vector<std::shared_ptr<vmmshare_device>> AllDevices();

// The first half of its UUID, which is another one for each device, and not 0.
std::uint64_t MarkOf(const vmmshare_device* device);

struct Driver {
  Holder<vmmshare_driver> handle;
};
struct Device {
  Holder<vmmshare_device> handle;
};
struct Allocation {
  Holder<vmmshare_memory> handle;
  bool readonly = false;
  int opened_for = -1;  // As of Locate().
  // That shared it; some may be gone.
  std::vector<std::weak_ptr<vmmshare_server>> servers = {};
  std::vector<std::shared_ptr<vmmshare_server>> Servers() const;
};
struct Server {
  Holder<vmmshare_server> handle;
};
struct Pool {
  Holder<vmmshare_pool> handle;
  bool on_host = false;
  int device = 0;
};
struct FencePool {
  Holder<vmmshare_fence_pool> handle;
};
struct Fence {
  // Its pool too, which may have been kept by this alone: other processes are
  // told when that goes, and wait no more.
  void Close() {
    handle.Close();
    if (pool != nullptr) LetGo(std::move(pool));
  }

  std::shared_ptr<vmmshare_fence_pool> pool;  // Null: of an array.
  // Goes before its pool, and of an array keeps the memory: it waits for what the
  // GPU writes there.
  Holder<vmmshare_fence> handle;
  mutable std::mutex signalling = {};  // Held without the GIL.
};

// This thread waits until `fence` has reached `value`, so long at most. Raises
// Unavailable once the owner of `pool`, which it is of, serves it no more. A fence
// of an array has none: null, and its wait ends by `timeout_ns` alone.
void WaitForFence(vmmshare_fence* fence, const vmmshare_fence_pool* pool,
                  std::uint64_t value, std::int64_t timeout_ns);

// Where what is at `address` is used, as the driver says; raises for what no array
// can be made of.
struct Located {
  bool on_host = false;
  int device = 0;          // Whose kernels reach it.
  std::uint64_t base = 0;  // Of the range around it.
  std::uint64_t size = 0;
};
// `opened_for`: the ordinal of the device for which it was opened, if one was
// named. Of cuMemCreate()'s memory the driver knows it too, of others' it need not.
Located Locate(const vmmshare_driver* driver, std::uint64_t address,
               int opened_for = -1);

// Of another process's memory: seconds until it is to be given back, none while
// nobody asks for it. Raises once the owner has ended.
std::optional<double> RecalledIn(const vmmshare_memory* memory);

// Text of a call that makes it.
template <typename Call>
std::string MadeText(const Call& call) {
  const std::shared_ptr<vmmshare_text> text = Make(&vmmshare_text_free, call);
  return vmmshare_text_get(text.get());
}

template <typename T>
using MakeText = vmmshare_status (*)(const T*, vmmshare_text**,
                                     vmmshare_error**);
// The same of what `holder` holds.
template <typename T>
std::string MadeText(const Holder<T>& holder, MakeText<T> make) {
  const auto handle = holder.shared();
  return MadeText([&](vmmshare_text** made, vmmshare_error** error) {
    return make(handle.get(), made, error);
  });
}

// Python objects of JSON, of which the outermost is an `As`.
template <typename As = nanobind::object>
As FromJson(const std::string& json) {
  const nanobind::object loads =
      nanobind::module_::import_("json").attr("loads");
  return nanobind::borrow<As>(loads(json));
}

// Those of what `holder` holds.
template <typename As = nanobind::object, typename T>
As JsonOf(const Holder<T>& holder, MakeText<T> make) {
  return FromJson<As>(MadeText(holder, make));
}

void DefineDriver(nanobind::module_& module);
void DefineMemory(nanobind::module_& module);
void DefinePool(nanobind::module_& module);
void DefineRemotePool(nanobind::module_& module);
void DefineServer(nanobind::module_& module);
void DefineReads(nanobind::module_& module);
void DefineRestorable(nanobind::module_& module);
void DefineRegion(nanobind::module_& module);
void DefineFence(nanobind::module_& module);
void DefineFenceArray(nanobind::module_& module);
void DefineMeet(nanobind::module_& module);
void DefineFetched(nanobind::module_& module);
void DefineRdma(nanobind::module_& module);
void DefineKeeper(nanobind::module_& module);
void DefineHooks(nanobind::module_& module);
void DefineRing(nanobind::module_& module);
void DefineSafetensors(nanobind::module_& module);
void DefineSymmetric(nanobind::module_& module);
void DefineWeights(nanobind::module_& module);
void DefineWeightsLayout(nanobind::module_& module);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_HANDLES_H_
