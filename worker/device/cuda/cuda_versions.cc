#include "worker/device/cuda/cuda_versions.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

std::string CudaName(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

std::string NcclName(int version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace

std::string Describe(const CudaVersions& versions) {
  if (versions.toolkit == 0) return "built without CUDA";
  std::string text = absl::StrCat("built with CUDA ", CudaName(versions.toolkit));
  if (versions.nccl != 0) absl::StrAppend(&text, " and NCCL ", NcclName(versions.nccl));
  if (versions.driver != 0) {
    absl::StrAppend(&text, "; driver for CUDA ", CudaName(versions.driver), ", ",
                    versions.num_devices, versions.num_devices == 1 ? " device" : " devices");
  }
  if (!versions.driver_status.ok()) {
    absl::StrAppend(&text, versions.driver == 0 ? "; no driver: " : ": ",
                    versions.driver_status.message());
  }
  return text;
}

}  // namespace tessera
