// Graphs: what a capture became, made ready and launched.
#include <cstdint>
#include <memory>
#include <vector>

#include "platform/hostdriver/state.h"
#include "platform/hostdriver/stream.h"

namespace vmm::hostdriver {
namespace {

CUresult LaunchAll(State& state, const std::shared_ptr<Stream>& stream,
                   Graph& graph) {
  const bool captured = stream->capture != nullptr;
  // As cuda.h has it: a launch comes after all earlier ones of the same graph,
  // on whatever streams.
  if (!captured && graph.last_stream != nullptr &&
      graph.last_stream != stream) {
    const std::vector<Stream::Point> last = {
        {graph.last_stream, graph.last_count}};
    if (!AllReached(last)) RETURN_IF_FAILED(SubmitWait(state, stream, last));
  }
  CUresult result = CUDA_SUCCESS;
  for (const Work& each : graph.work) {
    result = Submit(state, stream, each);
    if (result != CUDA_SUCCESS) break;
  }
  if (!captured) {
    graph.last_stream = stream;
    graph.last_count = stream->submitted;
  }
  return result;
}

template <typename Handle>
CUresult Destroy(const char* call, Handle graph) {
  RETURN_IF_FAILED(Enter(call));
  State& state = GetState();
  const Lock lock(state.mu);
  return state.graphs.erase(reinterpret_cast<std::uint64_t>(graph)) == 1
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph,
                                             unsigned long long flags) {
  RETURN_IF_FAILED(Enter("cuGraphInstantiateWithFlags"));
  State& state = GetState();
  const Lock lock(state.mu);
  const auto found = state.graphs.find(reinterpret_cast<std::uint64_t>(graph));
  if (made == nullptr || flags != 0 || found == state.graphs.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint64_t number = state.NewHandle();
  state.graphs[number].work = found->second.work;
  *made = reinterpret_cast<CUgraphExec>(number);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec graph, CUstream id) {
  RETURN_IF_FAILED(Enter("cuGraphLaunch"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuGraphLaunch", id, &stream));
  const auto found = state.graphs.find(reinterpret_cast<std::uint64_t>(graph));
  return found == state.graphs.end() ? CUDA_ERROR_INVALID_VALUE
                                     : LaunchAll(state, stream, found->second);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec graph) {
  return Destroy("cuGraphExecDestroy", graph);
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  return Destroy("cuGraphDestroy", graph);
}
