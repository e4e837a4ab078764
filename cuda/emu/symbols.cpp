// symbols.cpp - kernel names and __shared__ arrays, read from the symbol tables of this process.
//
// An array of function f is the symbol _ZZ<f>E<name>B9emushared: the tag is put there by the
// shadow cuda_runtime.h. To fill all arrays of all kernels before each block would cost megabytes,
// so a kernel has its own, plus those of device functions it was seen to use.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tarn/cuda/emu/arena.h"

namespace tarn::emu {

namespace {

constexpr char kTag[] = "B9emushared";

// One symbol table, mapped for good.
struct Table {
  const ElfW(Sym) * symbols;
  std::size_t count;
  const char* names;
  ElfW(Addr) bias;  // where the object was loaded
};

struct Symbols {
  std::vector<Table> tables;
  std::vector<SharedArray> arrays;
};

void add_arrays(Symbols& all, const Table& table) {
  for (std::size_t i = 0; i < table.count; ++i) {
    const auto& symbol = table.symbols[i];
    const char* name = table.names + symbol.st_name;
    if (symbol.st_size == 0 || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) continue;
    const char* tag = std::strstr(name, kTag);
    if (tag == nullptr || std::strncmp(name, "_ZZ", 3) != 0) continue;
    // Of <f>E<length><name>: walk back over the array's name and its length to the E.
    std::string owner(name + 3, tag);
    const std::size_t end = owner.rfind('E');
    for (std::size_t cut = end; cut != std::string::npos && cut > 0;
         cut = owner.rfind('E', cut - 1)) {
      char* rest = nullptr;
      const unsigned long length = std::strtoul(owner.c_str() + cut + 1, &rest, 10);
      if (length > 0 && std::strlen(rest) == length) {
        owner.resize(cut);
        break;
      }
    }
    all.arrays.push_back(
        {reinterpret_cast<char*>(table.bias + symbol.st_value), symbol.st_size, owner});
  }
}

void add_object(Symbols& all, const char* path, ElfW(Addr) bias) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  struct stat status {};
  fstat(file, &status);
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (memory == MAP_FAILED) return;
  const char* base = static_cast<const char*>(memory);
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(base);
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(base + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const Table table{reinterpret_cast<const ElfW(Sym)*>(base + sections[i].sh_offset),
                      sections[i].sh_size / sizeof(ElfW(Sym)),
                      base + sections[sections[i].sh_link].sh_offset, bias};
    add_arrays(all, table);
    all.tables.push_back(table);
  }
}

int visit_object(dl_phdr_info* info, std::size_t, void* all) {
  const char* path = *info->dlpi_name != '\0' ? info->dlpi_name : "/proc/self/exe";
  const bool of_system =
      std::strncmp(path, "/lib", 4) == 0 || std::strncmp(path, "/usr/lib", 8) == 0;
  if (!of_system) add_object(*static_cast<Symbols*>(all), path, info->dlpi_addr);
  return 0;
}

const Symbols& symbols() {
  static const Symbols instance = [] {
    Symbols all;
    dl_iterate_phdr(visit_object, &all);
    return all;
  }();
  return instance;
}

std::string mangled_name(const void* function) {
  for (const Table& table : symbols().tables) {
    const auto address = reinterpret_cast<ElfW(Addr)>(function) - table.bias;
    for (std::size_t i = 0; i < table.count; ++i) {
      const auto& symbol = table.symbols[i];
      if (symbol.st_value == address && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) {
        return table.names + symbol.st_name;
      }
    }
  }
  return "?";
}

// "void ns::kernel<float>(float*)" -> "ns::kernel<float>"
std::string readable_name(const std::string& mangled) {
  int status = 0;
  char* text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  if (text == nullptr) return mangled;
  std::string name = text;
  std::free(text);
  int depth = 0;
  for (std::size_t i = name.size(); i-- > 0;) {  // the parameter list is the last at depth 0
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0) {
      name.resize(i);
      break;
    }
  }
  if (name.rfind("void ", 0) == 0) name.erase(0, 5);
  return name;
}

bool is_poisoned(const SharedArray& array) {
  const char* end = array.data + array.bytes;
  return first_other(array.data, end, kPoison) == end;
}

}  // namespace

Kernel& kernel_of(const void* function) {
  static std::unordered_map<const void*, Kernel> kernels;  // nodes never move
  const auto [entry, is_new] = kernels.try_emplace(function);
  Kernel& kernel = entry->second;
  if (!is_new) return kernel;
  kernel.mangled = mangled_name(function);
  kernel.name = readable_name(kernel.mangled);
  for (const SharedArray& array : symbols().arrays) {
    if (kernel.mangled.compare(0, 2, "_Z") != 0 || kernel.mangled.substr(2) != array.owner)
      continue;
    kernel.shared.push_back(&array);
    kernel.static_shared_bytes += array.bytes;
  }
  kernel.dynamic_shared_limit = (std::size_t{48} << 10) - kernel.static_shared_bytes;
  return kernel;
}

void poison_shared_arrays(const Kernel& kernel, bool all) {
  if (all) {
    for (const SharedArray& array : symbols().arrays) std::memset(array.data, 0xff, array.bytes);
  } else {
    for (const SharedArray* array : kernel.shared) std::memset(array->data, 0xff, array->bytes);
  }
}

void learn_shared_arrays(Kernel& kernel) {
  for (const SharedArray& array : symbols().arrays) {
    const auto& known = kernel.shared;
    if (std::find(known.begin(), known.end(), &array) != known.end() || is_poisoned(array))
      continue;
    kernel.shared.push_back(&array);
  }
}

}  // namespace tarn::emu
