// memory_report.cpp - allocations by the module that was computing.
#include "tarn/nn/memory_report.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "tarn/core/memory_report.h"

namespace tarn::nn {
namespace {

int depth_of(const std::string& path) {
  return path.empty() ? 0 : 1 + static_cast<int>(std::count(path.begin(), path.end(), '.'));
}

bool is_inside(const std::string& path, const std::string& outer) {
  return outer.empty() || path == outer || path.rfind(outer + ".", 0) == 0;
}

}  // namespace

ModuleMemory::ModuleMemory(Module& net) {
  for (const auto& [path, module] : net.named_modules()) {
    row_of_.emplace(path, rows_.size());
    rows_.push_back({.path = path, .kind = module->kind()});
  }
  for (const auto& [name, tensor] : net.named_parameters()) {
    const size_t dot = name.rfind('.');
    const size_t row = row_of_.at(dot == std::string::npos ? "" : name.substr(0, dot));
    rows_[row].parameters += tensor.numel() * item_size(tensor.dtype());
    device_ = tensor.device();
  }
  rows_.push_back({.path = "(no module)", .kind = ""});
  add_op_listener(this);
}

ModuleMemory::~ModuleMemory() {
  remove_op_listener(this);
}

void ModuleMemory::memory(const void* ptr, int64_t bytes, Device device) {
  if (!(device == device_)) return;
  const std::lock_guard lock(mutex_);
  if (bytes < 0) {
    const auto found = held_.find(ptr);
    if (found == held_.end()) return;
    rows_[found->second.row].kept -= found->second.bytes;
    total_ -= found->second.bytes;
    held_.erase(found);
    return;
  }
  size_t row = rows_.size() - 1;
  if (Module::computing()) {
    const auto found = row_of_.find(tarn::detail::current_module_path());
    if (found != row_of_.end()) row = found->second;
  }
  held_[ptr] = {row, bytes};
  rows_[row].allocated += bytes;
  rows_[row].kept += bytes;
  total_ += bytes;
  if (total_ <= peak_) return;
  peak_ = total_;
  for (ModuleMemoryRow& r : rows_) r.at_peak = r.kept;
}

std::vector<ModuleMemoryRow> ModuleMemory::rows() const {
  const std::lock_guard lock(mutex_);
  return rows_;
}

std::string ModuleMemory::table(int depth) const {
  const std::vector<ModuleMemoryRow> own = rows();
  const ModuleMemoryRow& outside = own.back();
  std::vector<ModuleMemoryRow> shown;
  for (size_t i = 0; i + 1 < own.size(); ++i) {
    if (depth_of(own[i].path) > depth) continue;
    ModuleMemoryRow sum{.path = own[i].path, .kind = own[i].kind};
    for (size_t j = 0; j + 1 < own.size(); ++j) {
      if (!is_inside(own[j].path, own[i].path)) continue;
      sum.parameters += own[j].parameters;
      sum.allocated += own[j].allocated;
      sum.kept += own[j].kept;
      sum.at_peak += own[j].at_peak;
    }
    if (i == 0 || sum.parameters > 0 || sum.allocated > 0) shown.push_back(std::move(sum));
  }
  shown.front().path = "(model)";
  shown.push_back(outside);
  size_t width = 6;
  for (const ModuleMemoryRow& r : shown) width = std::max(width, r.path.size());
  std::ostringstream out;
  const auto line = [&](const std::string& path, const std::string& kind,
                        std::initializer_list<std::string> cells) {
    out << "  " << std::left << std::setw(static_cast<int>(width) + 2) << path << std::setw(24)
        << kind << std::right;
    for (const std::string& cell : cells) out << std::setw(12) << cell;
    out << "\n";
  };
  const auto text = [](int64_t bytes) { return tarn::detail::format_bytes(bytes); };
  out << "memory by module on " << device_ << ", with the modules inside\n";
  line("module", "", {"parameters", "allocated", "at peak", "now"});
  for (const ModuleMemoryRow& r : shown) {
    line(r.path, r.kind, {text(r.parameters), text(r.allocated), text(r.at_peak), text(r.kept)});
  }
  return out.str();
}

}  // namespace tarn::nn
