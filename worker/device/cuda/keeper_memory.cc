#include "worker/device/cuda/keeper_memory.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_context.h"
#include "worker/device/cuda/device_region.h"

namespace tessera {
namespace {

absl::Status TryToShare(const SharingDevice& device) {
  // The smallest region: it is rounded up to one granule.
  ASSIGN_OR_RETURN(const DeviceRegion region, DeviceRegion::Create(device, 1));
  ASSIGN_OR_RETURN(const UniqueFd descriptor, region.Export());
  return DeviceMapping::Import(device, descriptor.get(), region.size_bytes(), CudaAccess::kRead)
      .status();
}

absl::Status TryWithContext(CudaApi* api, int device) {
  ASSIGN_OR_RETURN(const std::unique_ptr<PrimaryContext> context,
                   PrimaryContext::Create(api, device, /*min_driver_version=*/0));
  // Tried, not only asked: what drivers claim of descriptors and what works may differ.
  const absl::Status shared = TryToShare({api, device, context.get()});
  // The keeper's thread must not keep a context that goes.
  const absl::Status left = api->CtxSetCurrent(nullptr);
  return shared.ok() ? left : shared;
}

absl::Status ReadAttributes(CudaApi* api, int device, DeviceMemoryFacts* facts) {
  RETURN_IF_ERROR(api->Init());
  ASSIGN_OR_RETURN(
      const int management,
      api->DeviceGetAttribute(CudaAttribute::kVirtualMemoryManagementSupported, device));
  ASSIGN_OR_RETURN(const int descriptors,
                   api->DeviceGetAttribute(CudaAttribute::kPosixFileDescriptorSupported, device));
  facts->memory_management = management != 0;
  facts->descriptors = descriptors != 0;
  return absl::OkStatus();
}

absl::string_view Name(KeeperMemory where) {
  switch (where) {
    case KeeperMemory::kWithoutContext:
      return "the keeper's, without a context";
    case KeeperMemory::kWithContext:
      return "the keeper's, with a context";
    case KeeperMemory::kInTrainer:
      return "each trainer's own, which hosts its executor, and shards are in the host's memory";
    case KeeperMemory::kNowhere:
      return "nobody's";
  }
  return "unknown";
}

}  // namespace

KeeperMemoryChoice ChooseKeeperMemory(const DeviceMemoryFacts& facts) {
  if (!facts.device.ok()) {
    return {KeeperMemory::kNowhere, absl::StrCat("no device: ", facts.device.message())};
  }
  if (!facts.memory_management) {
    return {KeeperMemory::kInTrainer, "the device has no virtual memory management"};
  }
  if (!facts.descriptors) {
    return {KeeperMemory::kInTrainer, "the device's memory has no descriptors"};
  }
  if (facts.without_context.ok()) {
    return {KeeperMemory::kWithoutContext, "descriptors work without a context"};
  }
  if (facts.with_context.ok()) {
    return {KeeperMemory::kWithContext,
            absl::StrCat("descriptors need a context: ", facts.without_context.message())};
  }
  // What may be otherwise in a minute says nothing of descriptors.
  for (const absl::Status& tried : {facts.without_context, facts.with_context}) {
    if (absl::IsResourceExhausted(tried) || absl::IsUnavailable(tried) || absl::IsInternal(tried)) {
      return {KeeperMemory::kNowhere,
              absl::StrCat("it could not be tried whether descriptors work: ", tried.message())};
    }
  }
  return {KeeperMemory::kInTrainer,
          absl::StrCat("descriptors do not work here: ", facts.with_context.message())};
}

DeviceMemoryFacts ProbeDeviceMemory(CudaApi* api, int device) {
  DeviceMemoryFacts facts;
  facts.device = ReadAttributes(api, device, &facts);
  // Trying what the device does not claim to have may fail in ways that say nothing.
  if (!facts.device.ok() || !facts.memory_management || !facts.descriptors) return facts;
  // A context that is still current on this thread would change the result.
  facts.without_context = api->CtxSetCurrent(nullptr);
  if (facts.without_context.ok()) facts.without_context = TryToShare({api, device, nullptr});
  if (!facts.without_context.ok()) facts.with_context = TryWithContext(api, device);
  return facts;
}

KeeperMemoryChoice FindKeeperMemory(CudaApi* api, int device) {
  KeeperMemoryChoice choice = ChooseKeeperMemory(ProbeDeviceMemory(api, device));
  const absl::string_view name = Name(choice.where);
  TESSERA_LOG(INFO, "memory of cuda:{} is {}: {}", device, std::string(name), choice.reason);
  return choice;
}

}  // namespace tessera
