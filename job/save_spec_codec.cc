#include "job/save_spec_codec.h"

#include "base/status_macros.h"
#include "job/job_codec.h"

namespace tessera {

v1::SaveSpec EncodeSaveSpec(const SaveSpec& spec) {
  v1::SaveSpec encoded;
  EncodeCheckpointSpec(spec, &encoded);
  encoded.set_is_model(spec.content == SaveContent::kModel);
  if (spec.options.dtype.has_value()) encoded.set_save_dtype(EncodeDType(*spec.options.dtype));
  return encoded;
}

absl::StatusOr<SaveSpec> DecodeSaveSpec(const v1::SaveSpec& spec) {
  SaveSpec decoded = DecodeCheckpointSpec(spec);
  if (spec.is_model()) decoded.content = SaveContent::kModel;
  if (spec.save_dtype() != v1::DTYPE_UNSPECIFIED) {
    ASSIGN_OR_RETURN(decoded.options.dtype, DecodeDType(spec.save_dtype()));
  }
  RETURN_IF_ERROR(CheckSaveSpec(decoded));
  return decoded;
}

}  // namespace tessera
