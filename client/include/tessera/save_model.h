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
#ifndef TESSERA_SAVE_MODEL_H_
#define TESSERA_SAVE_MODEL_H_

#include <string>

#include "absl/status/status.h"
#include "job/save_spec.h"
#include "tessera/session.h"

namespace tessera {

// Errors: InvalidArgument     the path or the options
//         OutOfRange          a value is too large for the dtype, naming tensor and value
//         FailedPrecondition  something else has that name; the ranks ask for different models; no
//                             initial values; fake collectives
//         the file system's (ResourceExhausted: the disk is full), with the rank's number: what had
//         the name is as it was then
//         Aborted             a process died, or the ranks could not agree in time.
absl::Status SaveModel(Session* session, const std::string& path, const SaveOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_SAVE_MODEL_H_
