// table.cpp - fills the CPU's kernel table, family by family: one line per family.
#include "tarn/core/cpu/table.h"

namespace tarn::cpu {

void fill_kernel_table([[maybe_unused]] KernelTable& table) {}

}  // namespace tarn::cpu
