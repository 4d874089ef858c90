#include "client/torch/state_exchange.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "layout/unit_parts.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {
namespace {

constexpr int64_t kMostNames = 1 << 24;
constexpr int64_t kLongestName = 1 << 20;

template <typename T>
absl::Span<char> BytesOf(std::vector<T>* values) {
  return absl::MakeSpan(reinterpret_cast<char*>(values->data()), values->size() * sizeof(T));
}

absl::Span<char> BytesOf(const torch::Tensor& tensor) {
  return absl::MakeSpan(static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
}

}  // namespace

absl::Status StateExchange::CheckAlike(absl::Span<const char> bytes, absl::string_view text) {
  // FNV-1a: against mistakes, not against attackers.
  uint64_t digest = 0xcbf29ce484222325;
  for (const char byte : bytes) digest = (digest ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  std::vector<uint64_t> own = {digest}, all(session_->config().world_size);
  RETURN_IF_ERROR(setup_.AllGather(BytesOf(&own), BytesOf(&all).data()));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0])
      return setup_.ErrorOfAll(
          absl::FailedPreconditionError(absl::StrCat("ranks 0 and ", rank, " ", text)));
  }
  return absl::OkStatus();
}

absl::Status StateExchange::Share(std::vector<int64_t>* numbers) {
  return setup_.Broadcast(BytesOf(numbers));
}

absl::Status StateExchange::Share(std::vector<std::string>* strings) {
  std::vector<int64_t> count = {static_cast<int64_t>(strings->size())};
  RETURN_IF_ERROR(Share(&count));
  // Numbers from another process are bounded before memory is made for them.
  if (count[0] < 0 || count[0] > kMostNames)
    return absl::InternalError(absl::StrCat("rank 0 announced ", count[0], " names"));
  std::vector<int64_t> sizes;
  for (const std::string& string : *strings) sizes.push_back(string.size());
  sizes.resize(count[0]);
  RETURN_IF_ERROR(Share(&sizes));
  strings->resize(count[0]);
  for (size_t i = 0; i < strings->size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > kLongestName)
      return absl::InternalError(absl::StrCat("rank 0 announced a name of ", sizes[i], " bytes"));
    (*strings)[i].resize(sizes[i]);
    RETURN_IF_ERROR(setup_.Broadcast(absl::MakeSpan((*strings)[i])));
  }
  return absl::OkStatus();
}

absl::Status StateExchange::Share(int64_t size_bytes, char* bytes) {
  // In the same pieces on all ranks, whether they keep them or not.
  constexpr int64_t kPiece = 1 << 20;
  std::vector<char> dropped(bytes == nullptr ? std::min(kPiece, size_bytes) : 0);
  for (int64_t at = 0; at < size_bytes; at += kPiece) {
    char* const piece = bytes == nullptr ? dropped.data() : bytes + at;
    RETURN_IF_ERROR(setup_.Broadcast(absl::MakeSpan(piece, std::min(kPiece, size_bytes - at))));
  }
  return absl::OkStatus();
}

absl::StatusOr<torch::Tensor> StateExchange::Share(const torch::Tensor& own,
                                                   const std::vector<int64_t>& shape,
                                                   torch::ScalarType dtype) {
  const torch::Tensor shared = session_->rank() == 0
                                   // A copy, because the broadcast also writes on rank 0.
                                   ? own.detach().to(torch::kCPU, dtype).contiguous().clone()
                                   : torch::empty(shape, dtype);
  RETURN_IF_ERROR(setup_.Broadcast(BytesOf(shared)));
  return shared;
}

absl::StatusOr<torch::Tensor> StateExchange::GatherRows(const torch::Tensor& own,
                                                        std::vector<int64_t> shape,
                                                        torch::ScalarType dtype, int64_t chunks) {
  // Chunks may differ by a row, and an AllGather moves equal sizes.
  const int64_t rows = shape[0];
  shape[0] = RowsOf(rows, chunks, 0).size();  // No chunk has more.
  const torch::Tensor padded = torch::zeros(shape, dtype);
  padded.narrow(0, 0, own.size(0)).copy_(own.detach());
  shape[0] *= session_->config().world_size;
  const torch::Tensor all = torch::empty(shape, dtype);
  RETURN_IF_ERROR(setup_.AllGather(BytesOf(padded), BytesOf(all).data()));
  // Chunks are of one size but for the end, so they have the layout of the whole.
  // Every group of ranks has all rows: those of the own group are taken.
  const int64_t group = session_->rank() / chunks;
  return all.narrow(0, group * chunks * padded.size(0), rows);
}

absl::StatusOr<torch::Tensor> StateExchange::GatherParts(const torch::Tensor& own,
                                                         const std::vector<ElementRange>& parts,
                                                         torch::ScalarType dtype) {
  int64_t most = 0, numel = 0;
  for (const ElementRange& part : parts) {
    most = std::max(most, part.size());
    numel = std::max(numel, part.end);
  }
  // Padded for the AllGather, as above.
  const torch::Tensor padded = torch::zeros({most}, dtype);
  padded.narrow(0, 0, own.numel()).copy_(own.detach().reshape({-1}));
  const torch::Tensor all = torch::empty({most * session_->config().world_size}, dtype);
  RETURN_IF_ERROR(setup_.AllGather(BytesOf(padded), BytesOf(all).data()));
  const torch::Tensor whole = torch::zeros({numel}, dtype);
  const int64_t chunks = parts.size();
  const int64_t first = session_->rank() / chunks * chunks;
  for (int64_t i = 0; i < chunks; ++i) {
    whole.slice(0, parts[i].begin, parts[i].end)
        .copy_(all.narrow(0, (first + i) * most, parts[i].size()));
  }
  return whole;
}

torch::Tensor FlatPart(const torch::Tensor& whole, const ElementRange& range,
                       torch::ScalarType dtype) {
  // A copy, so that the whole tensor can be freed.
  return whole.detach()
      .reshape({-1})
      .slice(0, range.begin, range.end)
      .to(torch::kCPU, dtype)
      .clone();
}

}  // namespace tessera
