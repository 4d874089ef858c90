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
//
// SaveModel, at the end, writes such files.
#ifndef TESSERA_STORED_MODEL_H_
#define TESSERA_STORED_MODEL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/save_spec.h"
#include "layout/name_selection.h"
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
