// How handles of the C interface are made, held and closed, and what classes of the
// module have in common for that.
#ifndef VMMSHARE_VMM_PYTHON_CORE_HOLDER_H_
#define VMMSHARE_VMM_PYTHON_CORE_HOLDER_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>

#include "vmm/c/base.h"
#include "vmm/python/core/error.h"
#include "vmm/python/core/forked.h"
#include "vmm/python/core/gil.h"
#include "vmm/python/core/object.h"

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

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_HOLDER_H_
