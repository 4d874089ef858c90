#include "worker/device/cuda/in_process_regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_device.h"

namespace tessera {
namespace {

constexpr char kMagic[16] = "tessera region";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

struct Content {
  char magic[sizeof(kMagic)];
  int64_t size_bytes;
};

struct Placeholder {
  dev_t file_system;
  ino_t inode;  // Nobody else's while a descriptor of it is open.
  int64_t size_bytes;
};

std::optional<Placeholder> ReadPlaceholder(int descriptor) {
  struct stat info;
  Content content;
  // Sealed, so that no other holder of the descriptor can change what was checked here.
  const int seals = fcntl(descriptor, F_GET_SEALS);  // The system may have set more of them.
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(descriptor, &info) != 0 ||
      info.st_size != sizeof(content) ||
      pread(descriptor, &content, sizeof(content), 0) != sizeof(content) ||
      memcmp(content.magic, kMagic, sizeof(kMagic)) != 0) {
    return std::nullopt;
  }
  return Placeholder{info.st_dev, info.st_ino, content.size_bytes};
}

// Of this process. Never destroyed: mappings may outlive main.
class RegionTable {
 public:
  static RegionTable& Get() {
    static RegionTable* const table = new RegionTable();
    return *table;
  }

  absl::StatusOr<Buffer> Map(CudaApi* api, int device, int descriptor, int64_t size_bytes)
      ABSL_LOCKS_EXCLUDED(mu_) {
    const std::optional<Placeholder> named = ReadPlaceholder(descriptor);
    if (!named.has_value()) return absl::InvalidArgumentError("no placeholder of a GPU's memory");
    // The size is what the file's maker wrote.
    if (size_bytes < 1 || named->size_bytes < size_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("a placeholder of ", named->size_bytes,
                                                     " bytes of a GPU's memory for ", size_bytes));
    }
    // Same file, same memory: each descriptor of it is another number.
    const Key key = {api, device, named->file_system, named->inode};
    absl::MutexLock lock(&mu_);
    auto found = regions_.find(key);
    if (found == regions_.end()) {
      ASSIGN_OR_RETURN(Region made, Make(api, device, descriptor, size_bytes));
      found = regions_.emplace(key, std::move(made)).first;
    }
    Region& region = found->second;
    // The first mapping decided the size.
    if (region.memory.size_bytes() < size_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(region.memory.size_bytes(),
                       " bytes of a GPU's memory are mapped here, instead of ", size_bytes));
    }
    ++region.num_mappings;
    return Buffer(region.memory.data(), size_bytes, [this, key] { Unmap(key); });
  }

 private:
  using Key = std::tuple<CudaApi*, int, dev_t, ino_t>;
  struct Region {
    UniqueFd placeholder;  // Keeps the inode from being another file's.
    std::unique_ptr<CudaDevice> device;
    Buffer memory;  // Goes before the device's context does.
    int num_mappings = 0;
  };

  static absl::StatusOr<Region> Make(CudaApi* api, int device, int descriptor, int64_t size_bytes) {
    Region region;
    region.placeholder = UniqueFd(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!region.placeholder.valid()) return ErrnoStatus(errno, "a placeholder of a GPU's memory");
    CudaDevice::Options options;
    options.device = device;
    ASSIGN_OR_RETURN(region.device, CudaDevice::Create(api, options));
    // Once for a process: session and executor get the same memory (docs/adr/0043).
    ASSIGN_OR_RETURN(region.memory, region.device->Allocate(size_bytes));
    return region;
  }

  // Under the lock, so that mapping it again does not find the device still full of it.
  void Unmap(const Key& key) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto found = regions_.find(key);
    if (--found->second.num_mappings == 0) regions_.erase(found);
  }

  absl::Mutex mu_;
  std::map<Key, Region> regions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<UniqueFd> CreatePlaceholder(const std::string& label, int64_t size_bytes) {
  if (size_bytes < 1)
    return absl::InvalidArgumentError(absl::StrCat(label, ": a region of ", size_bytes, " bytes"));
  Content content = {};
  memcpy(content.magic, kMagic, sizeof(kMagic));
  content.size_bytes = size_bytes;
  const std::string name = absl::StrCat("tessera:", label);
  UniqueFd placeholder(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!placeholder.valid()) return ErrnoStatus(errno, absl::StrCat("memfd_create ", name));
  // Sealed after it was written: a seal against writing holds for this process too.
  if (write(placeholder.get(), &content, sizeof(content)) != sizeof(content) ||
      fcntl(placeholder.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, name);
  }
  return placeholder;
}

bool IsPlaceholder(int descriptor) { return ReadPlaceholder(descriptor).has_value(); }

absl::StatusOr<Buffer> MapPlaceholder(CudaApi* api, int device, int descriptor,
                                      int64_t size_bytes) {
  return RegionTable::Get().Map(api, device, descriptor, size_bytes);
}

}  // namespace tessera
