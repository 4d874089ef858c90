#include "tests/bench/map_floor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "shm/fd_passing.h"

namespace tessera {
namespace bench {

MapFloorServer::MapFloorServer(const std::string& path, int num_regions, int64_t region_bytes)
    : path_(path) {
  std::vector<int> fds;
  for (int i = 0; i < num_regions; ++i) {
    auto region = SharedRegion::Create(absl::StrCat("floor-", i), region_bytes);
    TESSERA_CHECK(region.ok());
    fds.push_back(region->fd());
    regions_.push_back(*std::move(region));
  }
  auto listener = ListenPacketSocket(path);
  TESSERA_CHECK(listener.ok());
  listener_ = *std::move(listener);
  thread_ = std::thread([this, fds] {
    while (true) {
      const UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket.valid()) return;  // It was shut down.
      if (ReceivePacket(socket.get()).ok()) TESSERA_CHECK(SendPacket(socket.get(), "ok", fds).ok());
    }
  });
}

MapFloorServer::~MapFloorServer() {
  shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
  unlink(path_.c_str());
}

double SecondsForMapFloor(const std::string& path, int num_regions) {
  const absl::Time begin = absl::Now();
  const auto socket = ConnectPacketSocket(path);
  TESSERA_CHECK(socket.ok() && SendPacket(socket->get(), "give").ok());
  const auto packet = ReceivePacket(socket->get());
  TESSERA_CHECK(packet.ok() && static_cast<int>(packet->fds.size()) == num_regions);
  std::vector<Mapping> mappings;
  for (const UniqueFd& fd : packet->fds) {
    auto mapping = Mapping::CreateWhole(fd.get(), Access::kReadOnly);
    TESSERA_CHECK(mapping.ok());
    mappings.push_back(*std::move(mapping));
  }
  return absl::ToDoubleSeconds(absl::Now() - begin);
}

}  // namespace bench
}  // namespace tessera
