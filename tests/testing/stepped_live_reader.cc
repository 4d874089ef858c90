#include "tests/testing/stepped_live_reader.h"

#include "net/credentials.h"
#include "proto/grpc_status.h"

namespace tessera::testing_support {
namespace {

std::shared_ptr<grpc::Channel> Dial(const std::string& address) {
  return *OpenChannel({address}, {});
}

}  // namespace

SteppedLiveReader::SteppedLiveReader(const std::string& coordinator, const std::string& job,
                                     bool direct)
    : stub_(v1::LiveState::NewStub(Dial(coordinator))) {
  v1::LiveStateQuery query;
  query.set_job_id(job);
  query.set_moments(true);
  query.set_direct(direct);
  stream_ = stub_->GetLiveState(&context_, query);
}

SteppedLiveReader::~SteppedLiveReader() {
  context_.TryCancel();
  fetch_context_.TryCancel();
  (void)Finish();
}

bool SteppedLiveReader::Read() {
  if (!stream_->Read(&reply_)) return false;
  read_bytes_ += static_cast<int64_t>(reply_.piece().data().size());
  return true;
}

bool SteppedLiveReader::Fetch() {
  if (fetch_ == nullptr) {
    while (!reply_.has_sources()) {
      if (!Read()) return false;
    }
    const v1::LiveSource& source = reply_.sources().sources(0);
    fetch_stub_ = v1::LiveFetch::NewStub(Dial(*source.addresses().rbegin()));
    v1::LiveFetchRequest request;
    request.set_session(source.session());
    fetch_ = fetch_stub_->Fetch(&fetch_context_, request);
  }
  v1::LivePiece piece;
  if (!fetch_->Read(&piece)) return false;
  read_bytes_ += static_cast<int64_t>(piece.data().size());
  return true;
}

absl::Status SteppedLiveReader::Finish() {
  if (is_finished_) return absl::OkStatus();
  is_finished_ = true;
  if (fetch_ != nullptr) {
    while (Fetch()) {
    }
    (void)fetch_->Finish();
  }
  while (Read()) {
  }
  return FromGrpcStatus(stream_->Finish());
}

}  // namespace tessera::testing_support
