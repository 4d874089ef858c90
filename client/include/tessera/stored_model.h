// Parameters from a stored model, and an optimizer's state from a folder of PyTorch's: what a job
// starts with, or continues from.
//
//   ASSIGN_OR_RETURN(LoadReport report, LoadModel(session, "/models/model.safetensors"));
//
// The path is a safetensors file, an index.json of several, or a folder that holds either or that
// PyTorch's Distributed Checkpoint wrote; all workers see it. It is from
// Session::Save or anybody: whole parameters by name, so world size, strategy and units may be
// others than those that wrote it.
// Each rank's executor reads the bytes of its own shards alone and rounds or widens them to full
// precision. Buffers and ignored parameters of an attached module are read by every rank.
// Collective; on all ranks or on none, as Session::WriteParameters: moments, step numbers and
// reduced gradients stay. In a job without initial values it gives them, and is strict.
//
// SaveModel, at the end, writes such files.
#ifndef TESSERA_STORED_MODEL_H_
#define TESSERA_STORED_MODEL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest/name_selection.h"
#include "job/job_config.h"
#include "job/save_spec.h"
#include "tessera/session.h"

namespace tessera {

struct LoadOptions {
  // Parameters that the file lacks, and tensors that the model lacks, are an error. Otherwise the
  // former stay as they are, and the latter are not read.
  bool strict = true;
  // Which parameters are loaded and what the file calls them. What is left out keeps its values and
  // is neither missing nor unexpected, whatever its shape in the file. The same on all ranks.
  NameSelection names = {};
};

struct LoadReport {
  // Names: the model's of what is missing, buffers too, the file's of what is unexpected.
  std::vector<std::string> missing, unexpected;
};

// Errors: InvalidArgument     no model, or one that does not fit: naming the tensor; two tensors
//                             that are renamed alike, or a pattern that includes no parameter
//         NotFound, PermissionDenied, DataLoss  the files, as some rank sees them
//         Unimplemented       a folder of PyTorch's that an extension compressed
//         FailedPrecondition  the ranks see different files or ask for different names, or it
//                             changed meanwhile; a job without initial values is to get but some
//         Aborted             as Session::WriteParameters; or some rank read for longer than the
//                             others by more than an hour.
absl::StatusOr<LoadReport> LoadModel(Session* session, const std::string& path,
                                     const LoadOptions& options = {});

// --- LoadOptimizerState ---
//
// The state of an optimizer that PyTorch's Distributed Checkpoint (DCP) saved, as the job's own.
//
//   {"model": model_state_dict, "optim": optim_state_dict}     what was saved
//
//   LoadOptions model;                                         and how it is loaded
//   model.names.renames = {{"model.", ""}};
//   model.names.exclude = {"optim.*"};
//   RETURN_IF_ERROR(LoadModel(&session, folder, model).status());
//   ASSIGN_OR_RETURN(StepOptions::groups, LoadOptimizerState(&session, folder));
//
// Moments by parameter name, so world size, strategy and units may be others than those that wrote
// it. Each rank reads the bytes of its own shards alone, straight into its gradient slots. Nothing
// of the folder is executed (docs/adr/0024).
//
// Collective, as WriteOptimizerState: on all ranks or on none, repeated where another rank's
// process dies. Parameters and the number of the job's last step stay. Not within RunStep. One
// thread.

struct LoadOptimizerOptions {
  // What the names of the optimizer's items begin with: the key that it was saved under, and a dot.
  std::string prefix = "optim.";
  // Of a parameter's name as the optimizer has it; the first that applies. Not of ids; numbers that
  // become names of the job's parameters by it are names.
  std::vector<NameSelection::Rename> renames = {};
  // What ids stand for where the folder has those, as the state_dict() of torch.optim itself does:
  // the names of each of its param groups, in the order in which the optimizer got them. The
  // folder's groups must be as large. Of model.parameters() that is the order in which the module
  // registered them, which is not that of the job's units: the root's own come first there, also
  // those that are registered last. Nothing tells them apart where shapes are alike, so nothing is
  // guessed: a folder with ids is refused without names.
  std::vector<std::vector<std::string>> names_of_ids = {};
  // A trainable parameter without state in the folder, and a state without a parameter, are an
  // error. Otherwise the former has no state afterwards, as a new one, and the latter is not
  // read. An SGD's momentum may be missing in any case: it is one of zeroes.
  bool strict = true;
};

// Returns the numbers (StepOptions::groups) that the folder says, by the job's param groups: the
// job's own where it says none. They belong to steps, and nothing goes by them until given to one.
// The folder's groups may be others, if their numbers are the same within each of the job's.
// Errors: NotFound            nothing under the prefix; with `strict`, naming the parameter
//         InvalidArgument     no absolute path to a folder of DCP's; what dcp::ReadOptimizerState
//                             refuses; a moment of another shape or no floating-point one, or a
//                             number that is out of range, named; a name for two
//                             ids
//         FailedPrecondition  the folder has other moments than the job's optimizer, or other
//                             numbers within one of its groups, named; the ranks see different
//                             folders or ask for different things; no initial values; ids,
//                             and no names_of_ids, or those of groups of another size
//         Unimplemented       numbers that the job's optimizer has no formula for (nesterov, ...)
//         PermissionDenied, DataLoss  the files, as some rank sees them
absl::StatusOr<std::vector<HyperParameters>> LoadOptimizerState(
    Session* session, const std::string& folder, const LoadOptimizerOptions& options = {});

// --- SaveModel ---
//
// A model in the form that it is given away in: in files of a size, in a lower precision.
//
//   SaveOptions options;
//   options.max_file_bytes = 5'000'000'000;
//   options.dtype = DType::kBf16;
//   RETURN_IF_ERROR(SaveModel(&session, "/models/gpt", options));
//
//   /models/gpt/ model-00001-of-00003.safetensors, ..., model.safetensors.index.json
//
// Session::Save(path) is SaveModel(session, path, {}): one file in full precision. Written in
// parallel by the ranks that own the elements; nothing is gathered. Buffers and ignored parameters
// of an attached module are in it, rank 0's, and are never rounded. Collective, not within RunStep;
// thread-compatible, as the session. What is rounded is lost: to continue training from it, save a
// checkpoint (checkpoint.h), which is never rounded.

// Errors: InvalidArgument     the path or the options
//         OutOfRange          a value is too large for the dtype, naming tensor and value
//         FailedPrecondition  something else has that name; the ranks ask for different models; no
//                             initial values; fake collectives
//         the file system's (ResourceExhausted: the disk is full), with the rank's number: what had
//         the name is as it was then
//         Aborted             a process died, or the ranks could not agree in time.
absl::Status SaveModel(Session* session, const std::string& path, const SaveOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_STORED_MODEL_H_
