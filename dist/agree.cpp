// agree.cpp - whether all ranks hold the same model, and making it so.
#include "tarn/dist/agree.h"

#include <algorithm>
#include <cstring>
#include <map>
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
  const Tensor dense = raw::contiguous(x);
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

bool same_bits(const Tensor& x, const Tensor& y) {
  const size_t bytes = static_cast<size_t>(x.numel() * item_size(x.dtype()));
  return bytes == 0 || std::memcmp(x.data(), y.data(), bytes) == 0;
}

// The values on the host, dense. Those of a GPU come in one copy per dtype, since each waits for
// it.
std::vector<Tensor> on_host(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> host(tensors.size());
  std::map<DType, std::vector<size_t>> far;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    if (t.device().is_cpu()) {
      host[i] = raw::contiguous(t);
    } else {
      far[t.dtype()].push_back(i);
    }
  }
  for (const auto& [dtype, indices] : far) {
    int64_t numel = 0;
    for (size_t i : indices) numel += tensors[i].numel();
    const Tensor flat = empty({numel}, {.dtype = dtype, .device = tensors[indices[0]].device()});
    const auto for_each_part = [&](const Tensor& whole, auto visit) {
      int64_t at = 0;
      for (size_t i : indices) {
        visit(i, raw::narrow(whole, 0, at, tensors[i].numel()));
        at += tensors[i].numel();
      }
    };
    for_each_part(flat, [&](size_t i, const Tensor& part) {
      raw::copy_(raw::view(part, tensors[i].sizes()), tensors[i]);
    });
    for_each_part(raw::to(flat, kCPU), [&](size_t i, const Tensor& part) { host[i] = part; });
  }
  return host;
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

std::vector<char> true_on_any_rank(ProcessGroup& group, const std::vector<char>& flags) {
  const Tensor any = empty({static_cast<int64_t>(flags.size())}, {.dtype = DType::kU8});
  std::copy(flags.begin(), flags.end(), any.data<uint8_t>());
  group.all_reduce(any, ReduceOp::kMax)->wait();
  const uint8_t* at = any.data<uint8_t>();
  return {at, at + flags.size()};
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

void check_one_device(const std::string& what, const TensorDict& tensors) {
  const TensorDict::Item* first = nullptr;
  for (const TensorDict::Item& item : tensors) {
    if (!first) first = &item;
    TARN_CHECK_AS(DeviceError, item.second.device() == first->second.device(), what,
                  ": the module must be on one device; got ", first->first, " on ",
                  first->second.device(), ", ", item.first, " on ", item.second.device(),
                  "; move it to one, or average the gradients of each device's part by hand");
  }
}

void check_same_model(const std::string& who, const nn::Module& module, ProcessGroup& group) {
  TensorDict tensors = module.named_parameters();
  for (const auto& [name, buffer] : module.named_buffers()) tensors.add(name, buffer);
  check_one_device(who, tensors);
  check_same_layout(group, who + ": parameters", module.named_parameters());
  check_same_layout(group, who + ": buffers", module.named_buffers());
}

void broadcast_values(ProcessGroup& group, const std::vector<Tensor>& tensors, int root) {
  if (tensors.empty() || group.size() == 1) return;
  std::vector<Tensor> copies;
  for (const Tensor& t : tensors) {
    copies.push_back(group.rank() == root
                         ? raw::alias(t)
                         : empty(t.sizes(), {.dtype = t.dtype(), .device = t.device()}));
  }
  group.broadcast(copies, root)->wait();
  if (group.rank() == root) return;
  const std::vector<Tensor> theirs = on_host(copies), mine = on_host(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!same_bits(theirs[i], mine[i])) raw::copy_(tensors[i], copies[i]);
  }
}

void check_same_values(ProcessGroup& group, const std::string& what, const TensorDict& tensors) {
  const int64_t n = static_cast<int64_t>(tensors.size());
  if (n == 0) return;
  const Tensor mine = empty({n}, {.dtype = DType::kI64});
  const Tensor all = empty({group.size(), n}, {.dtype = DType::kI64});
  std::vector<Tensor> values;
  for (const auto& [name, t] : tensors) values.push_back(t);
  int64_t i = 0;
  for (const Tensor& t : on_host(values))
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
