// The coordinator's events. Thread-safe; no gRPC type shows here.
#ifndef TESSERA_CLIENT_DASHBOARD_EVENTS_READER_H_
#define TESSERA_CLIENT_DASHBOARD_EVENTS_READER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/cli/endpoint.h"
#include "proto/events.pb.h"

namespace tessera::dashboard {

class EventsReader {
 public:
  // Errors: as OpenChannel. Connects at the first call.
  static absl::StatusOr<std::unique_ptr<EventsReader>> Create(const cli::Endpoint& coordinator);
  virtual ~EventsReader() = default;

  // Those after this number; of a coordinator that has no such service, none.
  // Errors: as JobsClient; InvalidArgument
  virtual absl::StatusOr<v1::ListEventsResponse> ListAfter(int64_t number) = 0;
};

}  // namespace tessera::dashboard

#endif  // TESSERA_CLIENT_DASHBOARD_EVENTS_READER_H_
