#include <algorithm>
#include <cstddef>

#include "vmm/python/core/exchange.h"
#include "vmm/python/core/weights_writer.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

const WeightsWriter::Layouts& LayoutsOf(WeightsWriter& self) {
  WeightsWriter::Layouts& layouts = self.layouts;
  for (std::uint64_t place = layouts.dtypes.size(); place < self.count;
       ++place) {
    auto tensor = Sized<vmmshare_tensor>();
    Must([&](vmmshare_error** error) {
      return vmmshare_weights_layout_tensor(self.layout.get(), place, &tensor,
                                            error);
    });
    std::vector<std::int64_t>& numbers = layouts.numbers;
    numbers.insert(numbers.end(), tensor.shape, tensor.shape + tensor.rank);
    numbers.insert(numbers.end(), tensor.strides, tensor.strides + tensor.rank);
    layouts.begins.push_back(numbers.size());
    layouts.dtypes.push_back(
        FindDType(static_cast<std::uint8_t>(tensor.dtype)));
  }
  return layouts;
}

// Whether one has equal elements at equal places as that at `place`.
bool IsSame(const Layout& one, const WeightsWriter::Layouts& layouts,
            std::uint64_t place) {
  const std::int64_t* const begin =
      layouts.numbers.data() + layouts.begins.at(place);
  const std::size_t rank = one.shape.size();
  return one.dtype == layouts.dtypes.at(place) &&
         layouts.begins.at(place + 1) - layouts.begins[place] == 2 * rank &&
         std::equal(one.shape.begin(), one.shape.end(), begin) &&
         std::equal(one.strides.begin(), one.strides.end(), begin + rank);
}

// `said` is where it is as far as was read of it.
bool IsOn(nb::handle tensor, const DLDevice& said, const DLDevice& device) {
  if (device.device_type != kDLCUDA) return false;
  const std::int32_t ordinal =
      said.device_type == kDLCUDA
          ? said.device_id
          : nb::cast<std::int32_t>(tensor.attr("get_device")());
  return ordinal == device.device_id;
}

}  // namespace

void Assign(const vmmshare_tensor& tensor, Layout* layout) {
  layout->dtype = FindDType(static_cast<std::uint8_t>(tensor.dtype));
  layout->shape.assign(tensor.shape, tensor.shape + tensor.rank);
  layout->strides.assign(tensor.strides, tensor.strides + tensor.rank);
}

void CopyAll(WeightsWriter& self, const std::vector<std::uint64_t>& places,
             const std::vector<std::uint64_t>& addresses, std::intptr_t stream,
             bool from_device) {
  const auto writer = self.handle.shared();
  MustWithoutGil([&](vmmshare_error** error) {
    return vmmshare_weights_copy_all(
        writer.get(), places.data(), addresses.data(), places.size(),
        reinterpret_cast<void*>(stream),
        from_device ? VMMSHARE_WEIGHTS_FROM_DEVICE : 0u, error);
  });
}

std::vector<std::uint64_t> CopyTensors(WeightsWriter& self, nb::handle type,
                                       const nb::list& tensors,
                                       const std::vector<std::uint64_t>& places,
                                       std::intptr_t stream) {
  constexpr std::size_t kAtOnce = 1168;  // Of one launch.
  const auto open = self.handle.shared();
  TensorClass reader(type);
  const WeightsWriter::Layouts& layouts = LayoutsOf(self);
  Layout found;
  std::vector<std::uint64_t> to;
  std::vector<std::uint64_t> from;
  std::vector<std::uint64_t> others;
  const auto flush = [&] {
    if (!to.empty()) CopyAll(self, to, from, stream, true);
    to.clear();
    from.clear();
  };
  const DLDevice own = self.storage->place.device;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const nb::handle tensor = tensors[i];
    DLDevice device{};
    const std::uint64_t address = reader.Read(tensor, &found, &device);
    if (!IsSame(found, layouts, places[i]) || !IsOn(tensor, device, own) ||
        reader.IsLazy(tensor, found.dtype)) {
      others.push_back(i);
      continue;
    }
    to.push_back(places[i]);
    from.push_back(address);
    if (to.size() == kAtOnce) flush();
  }
  flush();
  return others;
}

}  // namespace vmm::python
