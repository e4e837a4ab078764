// agree.cpp - whether all ranks hold the same model, and making it so.
#include "tarn/dist/agree.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"
#include "tarn/dist/store.h"

namespace tarn::dist {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// FNV-1a over 8-byte words: differences of single bits always show.
uint64_t hash_of(const Tensor& x) {
  const Tensor dense = raw::contiguous(raw::to(x, kCPU));
  const size_t bytes = static_cast<size_t>(dense.numel() * item_size(dense.dtype()));
  const char* at = static_cast<const char*>(dense.data());
  uint64_t hash = 14695981039346656037ull;
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at + i, std::min<size_t>(8, bytes - i));
    hash = (hash ^ word) * 1099511628211ull;
  }
  return hash;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = raw::contiguous(raw::to(a, kCPU)), y = raw::contiguous(raw::to(b, kCPU));
  const size_t bytes = static_cast<size_t>(x.numel() * item_size(x.dtype()));
  return bytes == 0 || std::memcmp(x.data(), y.data(), bytes) == 0;
}

}  // namespace

std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text) {
  const int W = group.size();
  const Tensor lengths = zeros({W}, {.dtype = DType::kI64});
  group.all_gather(lengths, full({1}, static_cast<int64_t>(text.size()), {.dtype = DType::kI64}))
      ->wait();
  const auto sizes = lengths.to_vector<int64_t>();
  std::vector<Tensor> outs;
  for (int64_t n : sizes) outs.push_back(empty({n}, {.dtype = DType::kU8}));
  const Tensor mine = empty({static_cast<int64_t>(text.size())}, {.dtype = DType::kU8});
  if (!text.empty()) std::memcpy(mine.data(), text.data(), text.size());
  group.all_gather(outs, mine)->wait();
  std::vector<std::string> texts;
  for (const Tensor& t : outs) {
    texts.emplace_back(static_cast<const char*>(t.data()), static_cast<size_t>(t.numel()));
  }
  return texts;
}

void check_same_layout(ProcessGroup& group, const std::string& what, const TensorDict& tensors) {
  std::ostringstream layout;
  for (const auto& [name, t] : tensors)
    layout << name << " " << t.sizes() << " " << t.dtype() << "\n";
  const auto texts = all_gather_text(group, layout.str());
  for (size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) continue;
    const auto first = lines_of(texts[0]), other = lines_of(texts[r]);
    size_t i = 0;
    while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
    const auto line = [&](const std::vector<std::string>& lines) {
      return i < lines.size() ? lines[i] : std::string("no more");
    };
    tarn::detail::fail<ValueError>(what, " differ between ranks: number ", i, " is ", line(first),
                                   " on rank 0, but ", line(other), " on rank ", r,
                                   "; every rank must build the same model");
  }
}

void broadcast_values(ProcessGroup& group, const std::vector<Tensor>& tensors, int root) {
  if (tensors.empty() || group.size() == 1) return;
  std::vector<Tensor> copies;
  for (const Tensor& t : tensors) {
    copies.push_back(group.rank() == root ? raw::alias(t) : empty(t.sizes(), {.dtype = t.dtype(), .device = t.device()}));
  }
  group.broadcast(copies, root)->wait();
  for (size_t i = 0; group.rank() != root && i < tensors.size(); ++i) {
    if (!same_bits(copies[i], tensors[i])) raw::copy_(tensors[i], copies[i]);
  }
}

void check_same_values(ProcessGroup& group, const std::string& what, const TensorDict& tensors) {
  const int64_t n = static_cast<int64_t>(tensors.size());
  if (n == 0) return;
  const Tensor mine = empty({n}, {.dtype = DType::kI64});
  const Tensor all = empty({group.size(), n}, {.dtype = DType::kI64});
  int64_t i = 0;
  for (const auto& [name, t] : tensors)
    mine.data<int64_t>()[i++] = static_cast<int64_t>(hash_of(t));
  group.all_gather(all, mine)->wait();
  const int64_t* hash = all.data<int64_t>();
  i = 0;
  for (const auto& [name, t] : tensors) {
    std::vector<int> different;
    for (int r = 1; r < group.size(); ++r) {
      if (hash[r * n + i] != hash[i]) different.push_back(r);
    }
    TARN_CHECK_AS(DistError, different.empty(), what, ": ", name, " of ", ranks_text(different),
                  " is no longer equal to that of rank 0; the replicas have drifted apart");
    ++i;
  }
}

}  // namespace tarn::dist
