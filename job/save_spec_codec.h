// The one codec of SaveSpec: to and from v1::SaveSpec (proto/saves.proto), and the fields of the
// coordinator's journal (coordinator/storage/records.proto), which has the same by the same names.
// Stateless; thread-safe.
#ifndef TESSERA_JOB_SAVE_SPEC_CODEC_H_
#define TESSERA_JOB_SAVE_SPEC_CODEC_H_

#include "absl/status/statusor.h"
#include "job/save_spec.h"
#include "proto/saves.pb.h"

namespace tessera {

v1::SaveSpec EncodeSaveSpec(const SaveSpec& spec);
// Errors: InvalidArgument  an unknown dtype; as CheckSaveSpec.
absl::StatusOr<SaveSpec> DecodeSaveSpec(const v1::SaveSpec& spec);

// What a checkpoint's spec has, for v1::SaveSpec and the journal's Save. Nothing is checked.
template <typename Message>
void EncodeCheckpointSpec(const SaveSpec& spec, Message* to) {
  to->set_path(spec.path);
  to->set_keep_newest(spec.options.keep_newest);
  to->set_max_file_bytes(spec.options.max_file_bytes);
  to->set_in_parts(spec.options.in_parts);
  to->set_with_replicas(spec.options.with_replicas);
  to->set_in_foreground(!spec.options.in_background);
  to->set_no_overwrite(!spec.options.overwrite);
  to->set_root(spec.root);
}

template <typename Message>
SaveSpec DecodeCheckpointSpec(const Message& from) {
  SaveSpec spec;
  spec.path = from.path();
  spec.options.keep_newest = from.keep_newest();
  spec.options.max_file_bytes = from.max_file_bytes();
  spec.options.in_parts = from.in_parts();
  spec.options.with_replicas = from.with_replicas();
  spec.options.in_background = !from.in_foreground();
  spec.options.overwrite = !from.no_overwrite();
  spec.root = from.root();
  return spec;
}

}  // namespace tessera

#endif  // TESSERA_JOB_SAVE_SPEC_CODEC_H_
