// Parameters from a stored model: what a job starts with, or continues from.
//
//   ASSIGN_OR_RETURN(LoadReport report, LoadModel(session, "/models/model.safetensors"));
//
// The path is a safetensors file, an index.json of several, or a folder that holds either; all
// workers see it. It is from Session::Save or anybody: whole parameters by name, so world size,
// strategy and units may be others than those that wrote it.
// Each rank's executor reads the bytes of its own shards alone and rounds or widens them to full
// precision. Buffers and ignored parameters of an attached module are read by every rank.
// Collective; on all ranks or on none, as Session::WriteParameters: moments, step numbers and
// reduced gradients stay. In a job without initial values it gives them, and is strict.
#ifndef TESSERA_LOAD_MODEL_H_
#define TESSERA_LOAD_MODEL_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/manifest/name_selection.h"
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
//         Unimplemented       a folder of PyTorch's Distributed Checkpoint, which Python reads:
//                             tessera.load_model (docs/formats/stored_models.md)
//         FailedPrecondition  the ranks see different files or ask for different names, or it
//                             changed meanwhile; a job without initial values is to get but some
//         Aborted             as Session::WriteParameters; or some rank read for longer than the
//                             others by more than an hour.
absl::StatusOr<LoadReport> LoadModel(Session* session, const std::string& path,
                                     const LoadOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_LOAD_MODEL_H_
