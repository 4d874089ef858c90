#include "tests/gpu/gpu_facts.h"

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_device.h"

namespace tessera {
namespace gpu_check {
namespace {

constexpr int kMinCapability = 80;  // Kernels are built for it and for what came later.

std::string CudaName(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

std::string NcclVersionName(int version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

std::string CapabilityName(int capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

const char* Name(Mps verdict) {
  switch (verdict) {
    case Mps::kNotRunning:
      return "not running";
    case Mps::kRunning:
      return "running";
    case Mps::kUnclear:
      return "unclear";
    case Mps::kElsewhere:
      return "elsewhere";
  }
  return "unknown";
}

// The oldest driver that serves what was built with `toolkit`: a runtime needs its own major
// version.
int MinDriver(int toolkit) { return std::max(LeastDriverVersion(), toolkit / 1000 * 1000); }

absl::Status LookAtDevice(CudaApi* api, GpuFacts* facts) {
  ASSIGN_OR_RETURN(facts->name, api->DeviceGetName(0));
  ASSIGN_OR_RETURN(const int major,
                   api->DeviceGetAttribute(CudaAttribute::kComputeCapabilityMajor, 0));
  ASSIGN_OR_RETURN(const int minor,
                   api->DeviceGetAttribute(CudaAttribute::kComputeCapabilityMinor, 0));
  facts->capability = 10 * major + minor;
  if (facts->capability < kMinCapability) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device too old: ", facts->name, " has compute capability ",
        CapabilityName(facts->capability), ", and ", CapabilityName(kMinCapability), " is needed"));
  }
  // As the tests and the benchmark will get it, and given back at once.
  const absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(api, {});
  RETURN_IF_ERROR(Annotate(device.status(), "device not to be had"));
  ASSIGN_OR_RETURN(const CudaMemInfo memory, api->MemGetInfo());
  facts->memory_bytes = memory.total_bytes;
  return absl::OkStatus();
}

absl::Status Look(const absl::StatusOr<CudaApi*>& cuda, GpuFacts* facts) {
  if (facts->built_with == 0) return absl::UnimplementedError("this was built without CUDA");
  RETURN_IF_ERROR(Annotate(cuda.status(), "no driver"));
  CudaApi* api = *cuda;
  const absl::StatusOr<int> version = api->DriverGetVersion();
  RETURN_IF_ERROR(Annotate(version.status(), "driver not to be had"));
  facts->driver_cuda = *version;
  const int min_driver = MinDriver(facts->built_with);
  if (facts->driver_cuda < min_driver) {
    return absl::FailedPreconditionError(absl::StrCat("driver too old: it serves CUDA ",
                                                      CudaName(facts->driver_cuda), ", and CUDA ",
                                                      CudaName(min_driver), " is needed"));
  }
  RETURN_IF_ERROR(Annotate(api->Init(), "no device"));
  ASSIGN_OR_RETURN(facts->num_devices, api->DeviceGetCount());
  if (facts->num_devices == 0) return absl::NotFoundError("no device: the driver has none");
  return LookAtDevice(api, facts);
}

}  // namespace

GpuFacts FindGpu(const absl::StatusOr<CudaApi*>& cuda, const absl::StatusOr<NcclApi*>& nccl,
                 int toolkit, const std::string& driver_text, const MpsFinding& mps) {
  GpuFacts facts;
  facts.mps = mps;
  facts.built_with = toolkit;
  facts.driver = std::string(
      absl::StripAsciiWhitespace(absl::string_view(driver_text).substr(0, driver_text.find('\n'))));
  facts.usable = Look(cuda, &facts);
  if (!nccl.ok()) {
    facts.nccl_error = std::string(nccl.status().message());
  } else if ((*nccl)->GetVersion(&facts.nccl) != NcclResult::kSuccess) {
    facts.nccl = 0;
    facts.nccl_error = "it does not say its version";
  }
  return facts;
}

nlohmann::ordered_json ToJson(const GpuFacts& facts) {
  nlohmann::ordered_json json;
  const auto put = [&json](const char* key, bool known, auto value) {
    json[key] = nullptr;
    if (known) json[key] = std::move(value);
  };
  put("name", !facts.name.empty(), facts.name);
  json["devices"] = facts.num_devices;
  put("compute_capability", facts.capability != 0, CapabilityName(facts.capability));
  put("memory_bytes", facts.memory_bytes != 0, facts.memory_bytes);
  put("driver", !facts.driver.empty(), facts.driver);
  put("driver_cuda", facts.driver_cuda != 0, CudaName(facts.driver_cuda));
  put("built_with_cuda", facts.built_with != 0, CudaName(facts.built_with));
  put("nccl", facts.nccl != 0, NcclVersionName(facts.nccl));
  if (!facts.nccl_error.empty()) json["nccl_error"] = facts.nccl_error;
  json["mps"] = {{"verdict", Name(facts.mps.verdict)}, {"reason", facts.mps.reason}};
  return json;
}

std::string Describe(const GpuFacts& facts) {
  if (!facts.usable.ok()) {
    return absl::StrCat("no usable GPU: ", facts.usable.message());
  }
  return absl::StrCat(facts.name, ", ", facts.memory_bytes >> 30, " GiB; driver for CUDA ",
                      CudaName(facts.driver_cuda), "; ",
                      facts.nccl == 0 ? absl::StrCat("no NCCL: ", facts.nccl_error)
                                      : absl::StrCat("NCCL ", NcclVersionName(facts.nccl)),
                      "; MPS ", Name(facts.mps.verdict));
}

}  // namespace gpu_check
}  // namespace tessera
