// A folder that PyTorch's Distributed Checkpoint (DCP) wrote, as a model to read from. Whatever
// mesh and sharding wrote it, a slice is read from the boxes that hold it. Objects other than
// tensors are not listed. Nothing of it is executed. Move-only; ReadSlice is thread-safe and holds
// one file open at a time.
#ifndef TESSERA_CHECKPOINT_DCP_DCP_MODEL_H_
#define TESSERA_CHECKPOINT_DCP_DCP_MODEL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/dcp/dcp_metadata.h"
#include "checkpoint/safetensors/model_source.h"

namespace tessera::dcp {

inline constexpr char kMetadataName[] = ".metadata";

class DcpModel final : public ModelSource {
 public:
  // Reads the metadata and looks whether each file is there and as long as it has to be; the
  // items in them are checked as they are read.
  // Errors: what DecodeMetadata refuses; NotFound, PermissionDenied  a file; DataLoss  one that is
  //         too short. They name the file.
  static absl::StatusOr<DcpModel> Open(const std::string& folder);

  const TensorTable& tensors() const override { return tensors_; }
  uint64_t identity() const override { return identity_; }
  // Each call opens the files again, and may read an item whole.
  bool reads_small_slices_well() const override { return false; }
  // Also InvalidArgument  what LocateTorchTensor refuses, or an item that is not what the metadata
  // says. A tensor whose elements are not row-major in its item costs memory for that item.
  absl::Status ReadSlice(const std::string& tensor, int64_t begin_elements,
                         Values into) const override;
  absl::Status ReadStored(const std::string& tensor, int64_t begin_elements, int64_t count,
                          char* into) const override;

 private:
  DcpModel(std::string folder, Metadata metadata, uint64_t identity);

  std::string folder_;
  Metadata metadata_;
  TensorTable tensors_;
  uint64_t identity_;
};

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_DCP_MODEL_H_
