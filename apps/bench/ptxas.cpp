// ptxas.cpp - reads what the assembler says of each kernel.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string_view>
#include <vector>

#include <cxxabi.h>

#include "tarn/apps/bench/roofline.h"
#include "tarn/core/error.h"

namespace tarn::bench {
namespace {

struct KernelUse {
  std::string name;
  int registers = 0, shared = 0, spilled = 0;
};

// The number before `unit`, as in "Used 32 registers, 16 bytes smem"; 0 if there is none.
int number_before(const std::string& line, const std::string& unit) {
  const size_t at = line.find(unit);
  if (at == std::string::npos) return 0;
  size_t begin = at;
  while (begin > 0 && (std::isdigit(line[begin - 1]) || line[begin - 1] == ' ')) --begin;
  return std::atoi(line.c_str() + begin);
}

std::string readable(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  std::string text = status == 0 ? name.get() : mangled;
  constexpr std::string_view kHidden = "(anonymous namespace)::";
  for (size_t at; (at = text.find(kHidden)) != std::string::npos;) text.erase(at, kHidden.size());
  return text.substr(0, text.find('('));
}

std::vector<KernelUse> read_log(const std::string& path) {
  std::ifstream file(path);
  TARN_CHECK_AS(FileError, file.good(), "roofline: cannot read ", path,
                "; it is the output of a build with -DTARN_PTXAS_VERBOSE=ON");
  std::vector<KernelUse> kernels;
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find("Compiling entry function '");
    if (begin != std::string::npos) {
      const size_t from = line.find('\'', begin) + 1;
      kernels.push_back({readable(line.substr(from, line.find('\'', from) - from))});
    } else if (!kernels.empty() && line.find("bytes spill stores") != std::string::npos) {
      kernels.back().spilled = number_before(line, " bytes spill stores");
    } else if (!kernels.empty() && line.find("Used ") != std::string::npos) {
      kernels.back().registers = number_before(line, " registers");
      kernels.back().shared = number_before(line, " bytes smem");
    }
  }
  TARN_CHECK_AS(FileError, !kernels.empty(), "roofline: ", path, " names no kernel");
  return kernels;
}

// Registers are handed out 256 at a time to a warp; a multiprocessor has 65536, 228 KiB of shared
// memory and room for 2048 threads (compute capability 9.0).
int resident_threads(const KernelUse& k, int block) {
  const int per_warp = (k.registers * 32 + 255) / 256 * 256;
  const int by_registers = 65536 / std::max(per_warp * (block / 32), 1);
  const int by_shared = k.shared > 0 ? (228 << 10) / (k.shared + 1024) : 64;
  return std::min({by_registers, by_shared, 2048 / block}) * block;
}

}  // namespace

void print_ptxas(const std::string& path) {
  const std::vector<KernelUse> kernels = read_log(path);
  std::printf("%9s %9s %9s %10s  %s\n", "registers", "shared B", "spilled B", "occupancy",
              "kernel");
  int spilling = 0;
  for (const KernelUse& k : kernels) {
    spilling += k.spilled > 0;
    std::printf("%9d %9d %9d %8.0f %%  %s\n", k.registers, k.shared, k.spilled,
                100.0 * resident_threads(k, 256) / 2048, k.name.c_str());
  }
  std::printf("%zu kernels, %d spill registers; occupancy at 256 threads a block\n", kernels.size(),
              spilling);
}

}  // namespace tarn::bench
