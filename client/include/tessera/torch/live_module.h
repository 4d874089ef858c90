// The state of a job that trains, set in an ordinary module of another process: an evaluation or an
// inference, which is not one of the trainers.
//
//   auto model = std::make_shared<Model>();               whole: no Sharded<> is attached
//   LiveModule live;
//   live.reader.coordinator_address = "127.0.0.1:7070";
//   live.reader.worker_addresses = {"unix:/run/tessera-worker/worker.sock"};  if on the job's node
//   live.job_id = "gpt";
//   ASSIGN_OR_RETURN(LoadedLiveState loaded, LoadLiveState(model.get(), live));
//   model->eval();                                        it is as step loaded.version.trained_step
//
// Parameters and buffers of one committed step, on all ranks; buffers are rank 0's. No trainer is
// asked, and none waits: from workers that are named they are copied out of their memory
// (tessera/live_map.h), and otherwise fetched (live_reader.h). One thread, and nobody
// else uses the module meanwhile. Memory: the module's tensors once more, and the largest one as the
// job keeps it.
#ifndef TESSERA_TORCH_LIVE_MODULE_H_
#define TESSERA_TORCH_LIVE_MODULE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/name_selection.h"
#include "tessera/live_reader.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

struct LiveModule {
  LiveReaderOptions reader;
  std::string job_id;
  // Tensors of the module that the job lacks, and of the job that the module lacks, are an error.
  // Otherwise the former stay as they are, and the latter are not used.
  bool strict = true;
  bool buffers = true;  // Else they stay as they are, and are neither missing nor unexpected.
  // As of loads: renames say what a tensor of the job is called in the module, and patterns are of
  // names in the module; what is left out stays, and is neither missing nor unexpected.
  NameSelection names = {};
};

struct LoadedLiveState {
  LiveVersion version;
  bool is_mapped = false;  // Else it was fetched.
  // Names: the module's of what is missing, the job's of what is unexpected.
  std::vector<std::string> missing, unexpected;
};

// Sets everything, or where anything is wrong nothing. Tensors keep their dtype, device and memory:
// elements are rounded or widened to floating-point dtypes, while all others must be the job's.
// Tied weights, which are the same elements in the same shape, are set under whichever of their
// names the job has; where it has several that differ it is an error. (What libtorch itself finds
// only as it sets elements, an error of a GPU, leaves the module half set.)
// Errors: NotFound         strict, and names are missing or unexpected: all are named; no such job
//         InvalidArgument  a tensor of another shape, or of a dtype that it cannot be set from, or
//                          on the meta device, or sparse or quantized, or with several elements in
//                          one place, or beyond its storage, named; two that are renamed alike, or
//                          share some of their elements
//         ResourceExhausted  what libtorch throws: it has no memory
//         others           LiveReader::Get
absl::StatusOr<LoadedLiveState> LoadLiveState(torch::nn::Module* module, const LiveModule& options);

}  // namespace tessera

#endif  // TESSERA_TORCH_LIVE_MODULE_H_
