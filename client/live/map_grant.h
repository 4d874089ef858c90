// The coordinator's leave to map a job's state, for as long as this is there: a call of its service
// LiveMap. Thread-compatible; no gRPC type shows here.
#ifndef TESSERA_CLIENT_LIVE_MAP_GRANT_H_
#define TESSERA_CLIENT_LIVE_MAP_GRANT_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "net/keepalive.h"
#include "net/transport_security.h"
#include "proto/live_map.pb.h"

namespace tessera {

class MapGrant {
 public:
  // Errors, naming the coordinator: as LiveMap.MapLiveState (proto/live_map.proto); Unavailable
  // where nothing answers there; Unimplemented of one that knows no maps; ResourceExhausted where
  // no thread is left, of which it has one.
  static absl::StatusOr<std::unique_ptr<MapGrant>> Open(const DialOptions& coordinator,
                                                        const Keepalive& keepalive,
                                                        const v1::LiveStateQuery& query);
  virtual ~MapGrant() = default;  // Gives it back.

  const std::vector<v1::LiveTensorInfo>& tensors() const { return tensors_; }
  const v1::LiveMapReady& ready() const { return ready_; }
  // Whether the coordinator took it back, or is gone. Thread-safe.
  virtual bool has_ended() const = 0;
  // Of one that has ended: as the coordinator says, as LiveMap.MapLiveState; or Unavailable.
  virtual absl::Status why_ended() const = 0;

 protected:
  std::vector<v1::LiveTensorInfo> tensors_;
  v1::LiveMapReady ready_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_LIVE_MAP_GRANT_H_
