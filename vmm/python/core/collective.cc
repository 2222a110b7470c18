#include "vmm/python/core/collective.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "vmm/python/core/bytes_like.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// The program's exchange, on the thread that called in, and what it raised.
struct Caller {
  nb::handle exchange;
  std::optional<nb::python_error> raised;

  // `missing`: whether a LookupError says that the value is not there.
  template <typename Body>
  vmmshare_status Run(const Body& body, bool missing) {
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      body();
      return VMMSHARE_OK;
    } catch (nb::python_error& error) {
      // By Ctrl-C, say: nobody waits any longer to learn who is missing.
      if (!error.matches(PyExc_Exception)) throw;
      if (missing && error.matches(PyExc_LookupError)) {
        return VMMSHARE_NOT_FOUND;
      }
      Keep(std::move(error));
    } catch (const nb::builtin_exception& error) {
      // Not what an exchange returns.
      PyErr_SetString(PyExc_TypeError, error.what());
      Keep(nb::python_error());
    } catch (const std::exception&) {
      return VMMSHARE_RESOURCE_EXHAUSTED;  // The host has no memory for it.
    }
    return VMMSHARE_CANCELLED;
  }

  // The first: the calls after it are made to say who is missing.
  void Keep(nb::python_error error) {
    if (!raised.has_value()) raised.emplace(std::move(error));
  }
};

// The caller's exchange for a call that has a thread of its own, where nothing of
// the caller's is touched.
struct FromAfar {
  Caller& caller;
  Errands& errands;

  template <typename Body>
  vmmshare_status Run(const Body& body, bool missing = false) {
    vmmshare_status status = VMMSHARE_CANCELLED;
    const bool has_run = errands.Run(
        [&] { status = caller.Run([&] { body(caller.exchange); }, missing); });
    return has_run ? status : VMMSHARE_CANCELLED;
  }
};

// Within threading.TIMEOUT_MAX: an exchange hands it to what waits.
double Seconds(std::int64_t timeout_ns) {
  return std::clamp(static_cast<double>(timeout_ns) / 1e9, 0.0, 9e9);
}

vmmshare_status CallPut(void* user, const char* key, const std::uint8_t* value,
                        std::uint64_t size, std::int64_t) {
  return static_cast<FromAfar*>(user)->Run([&](nb::handle exchange) {
    exchange.attr("put")(key, nb::bytes(value, static_cast<std::size_t>(size)));
  });
}

vmmshare_status CallFence(void* user, std::int64_t timeout_ns) {
  return static_cast<FromAfar*>(user)->Run([&](nb::handle exchange) {
    exchange.attr("fence")(Seconds(timeout_ns));
  });
}

vmmshare_status CallGet(void* user, std::int32_t rank, const char* key,
                        std::uint8_t* value, std::uint64_t room,
                        std::uint64_t* size, std::int64_t) {
  return static_cast<FromAfar*>(user)->Run(
      [&](nb::handle exchange) {
        const nb::object returned = exchange.attr("get")(rank, key);
        const nb::object bytes = BytesOrNull(returned);
        if (!bytes.is_valid()) {
          RefuseType("what get() of the exchange returned", returned,
                     "bytes, as were put");
        }
        const auto got = nb::borrow<nb::bytes>(bytes);
        *size = got.size();
        std::copy_n(got.c_str(), std::min<std::uint64_t>(room, got.size()),
                    reinterpret_cast<char*>(value));
      },
      true);
}

}  // namespace

Ranks RanksOf(nb::handle exchange) {
  return {nb::cast<int>(exchange.attr("rank")),
          nb::cast<int>(exchange.attr("size"))};
}

std::shared_ptr<void> RunCollective(
    nb::handle exchange, Ranks ranks, const std::string& scope,
    std::function<void(const vmmshare_exchange&, Outcome&)> call) {
  WithoutNul(scope);
  Caller caller{exchange, std::nullopt};
  try {
    return WaitOnAThread([&caller, ranks, scope, call = std::move(call)](
                             Outcome& outcome, Errands& errands) {
      FromAfar from_afar{caller, errands};
      const vmmshare_exchange calls = {sizeof(vmmshare_exchange),
                                       "python",
                                       scope.c_str(),
                                       ranks.rank,
                                       ranks.size,
                                       &from_afar,
                                       &CallPut,
                                       &CallFence,
                                       &CallGet};
      call(calls, outcome);
    });
  } catch (const nb::python_error& error) {
    if (!caller.raised.has_value() || !error.matches(PyExc_Exception)) throw;
  }
  throw nb::python_error(std::move(*caller.raised));
}

}  // namespace vmm::python
