#include "client/cpp/mapped_source.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/memory/map_claim.h"
#include "worker/memory/shared_file.h"

namespace tessera {
namespace {

// For an answer. A worker that is frozen gives none.
constexpr int kPatienceSeconds = 10;
constexpr int64_t kMaxGivenBytes = 256 << 20;
constexpr auto kWordBytes = static_cast<int64_t>(sizeof(std::atomic<int64_t>));

bool IsInside(int64_t offset_bytes, int64_t size_bytes, int64_t region_bytes) {
  return size_bytes >= 0 && offset_bytes >= 0 && size_bytes <= region_bytes &&
         offset_bytes <= region_bytes - size_bytes;
}

bool IsWord(int64_t offset_bytes, int64_t region_bytes) {
  return offset_bytes % kWordBytes == 0 && IsInside(offset_bytes, kWordBytes, region_bytes);
}

absl::Status CheckServerUser(int socket) {
  return geteuid() == 0 ? absl::OkStatus() : CheckPeerUser(socket);
}

absl::StatusOr<v1::LiveMapGiven> ReadGiven(int fd) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadSealedFile(fd, kMaxGivenBytes));
  v1::LiveMapGiven given;
  if (!given.ParseFromString(bytes)) return absl::DataLossError("what came says nothing");
  if (given.step() < 0) return absl::DataLossError(absl::StrCat("step ", given.step(), " came"));
  return given;
}

}  // namespace

absl::Status CheckPlaces(const v1::LiveMapGiven& given, const std::vector<int64_t>& region_sizes) {
  if (region_sizes.empty() || given.ranks().empty())
    return absl::DataLossError("no words came that say which version stands");
  for (const v1::LiveMapRank& rank : given.ranks()) {
    if (IsWord(rank.applied_offset_bytes(), region_sizes[0]) &&
        IsWord(rank.writing_offset_bytes(), region_sizes[0]))
      continue;
    return absl::DataLossError(absl::StrCat("words at ", rank.applied_offset_bytes(), " and ",
                                            rank.writing_offset_bytes(), " of ", region_sizes[0],
                                            " bytes"));
  }
  for (const v1::LiveMapSlice& slice : given.slices()) {
    const bool has_region =
        slice.region() >= 0 && slice.region() < static_cast<int>(region_sizes.size());
    const int64_t region_bytes = has_region ? region_sizes[slice.region()] : -1;
    if (IsInside(slice.even_offset_bytes(), slice.size_bytes(), region_bytes) &&
        IsInside(slice.odd_offset_bytes(), slice.size_bytes(), region_bytes) &&
        slice.size_bytes() > 0)
      continue;
    return absl::DataLossError(absl::StrCat(
        slice.size_bytes(), " bytes at ", slice.even_offset_bytes(), " and ",
        slice.odd_offset_bytes(), " of region ", slice.region(), " of ", region_bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MappedSource>> MappedSource::Claim(const v1::LiveMapSource& source) {
  auto mapped = std::unique_ptr<MappedSource>(new MappedSource(source));
  const std::string who = absl::StrCat("worker '", source.worker_id(), "'");
  const absl::StatusOr<Packet> packet = mapped->Ask(/*only_numbers=*/false);
  // Another worker may have such a path on this host, and knows no such session.
  if (absl::IsNotFound(packet.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, " is not on this host: ", packet.status().message()));
  }
  if (!packet.ok()) return Annotate(packet.status(), who);
  RETURN_IF_ERROR(Annotate(mapped->Map(*packet), who));
  return mapped;
}

absl::StatusOr<Packet> MappedSource::Ask(bool only_numbers) const {
  absl::StatusOr<UniqueFd> socket = ConnectPacketSocket(source_.descriptor_socket());
  if (socket.ok()) {
    const absl::Status same_user = CheckServerUser(socket->get());
    if (!same_user.ok()) return absl::FailedPreconditionError(same_user.message());
  } else if (absl::IsResourceExhausted(socket.status())) {
    return socket.status();
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat("not on this host, or another user's: ", socket.status().message()));
  }
  const timeval patience = {kPatienceSeconds, 0};
  (void)setsockopt(socket->get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  RETURN_IF_ERROR(SendPacket(socket->get(), MapClaimText({source_.session(), only_numbers}), {},
                             /*wait=*/false));
  absl::StatusOr<Packet> packet = ReceivePacket(socket->get());
  if (!packet.ok()) return absl::UnavailableError(packet.status().message());
  RETURN_IF_ERROR(ParseMapReply(packet->bytes));
  if (packet->fds.empty()) return absl::DataLossError("no descriptors came");
  return packet;
}

absl::Status MappedSource::Map(const Packet& packet) {
  ASSIGN_OR_RETURN(given_, ReadGiven(packet.fds[0].get()));
  std::vector<int64_t> sizes;
  for (size_t i = 1; i < packet.fds.size(); ++i) {
    ASSIGN_OR_RETURN(sizes.emplace_back(), SizeOfSealed(packet.fds[i].get()));
  }
  RETURN_IF_ERROR(CheckPlaces(given_, sizes));
  for (size_t i = 1; i < packet.fds.size(); ++i) {
    ASSIGN_OR_RETURN(regions_.emplace_back(),
                     Mapping::Create(packet.fds[i].get(), 0, sizes[i - 1], Access::kReadOnly));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::LiveMapGiven> MappedSource::Newest() const {
  const std::string who = absl::StrCat("worker '", source_.worker_id(), "'");
  const absl::StatusOr<Packet> packet = Ask(/*only_numbers=*/true);
  if (absl::IsNotFound(packet.status()) || absl::IsFailedPrecondition(packet.status()))
    return absl::UnavailableError(absl::StrCat(who, ": ", packet.status().message()));
  if (!packet.ok()) return Annotate(packet.status(), who);
  absl::StatusOr<v1::LiveMapGiven> given = ReadGiven(packet->fds[0].get());
  if (!given.ok()) return Annotate(given.status(), who);
  return given;
}

absl::string_view MappedSource::Slice(int number, int64_t step) const {
  const v1::LiveMapSlice& slice = given_.slices(number);
  const int64_t offset_bytes = step % 2 == 0 ? slice.even_offset_bytes() : slice.odd_offset_bytes();
  return {reinterpret_cast<const char*>(regions_[slice.region()].data()) + offset_bytes,
          static_cast<size_t>(slice.size_bytes())};
}

const std::atomic<int64_t>& MappedSource::Word(int64_t offset_bytes) const {
  return *reinterpret_cast<const std::atomic<int64_t>*>(regions_[0].data() + offset_bytes);
}

bool MappedSource::IsWhole(int64_t step) const {
  return std::all_of(
      given_.ranks().begin(), given_.ranks().end(), [&](const v1::LiveMapRank& rank) {
        return Word(rank.applied_offset_bytes()).load(std::memory_order_acquire) >= step;
      });
}

bool MappedSource::Stands(int64_t step) const {
  // What was read before is read before the words are: the writer's side is in state_hold.cc.
  std::atomic_thread_fence(std::memory_order_acquire);
  return std::all_of(
      given_.ranks().begin(), given_.ranks().end(), [&](const v1::LiveMapRank& rank) {
        return Word(rank.writing_offset_bytes()).load(std::memory_order_relaxed) < step + 2;
      });
}

}  // namespace tessera
