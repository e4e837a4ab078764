// memory.cpp - device memory: one arena per device, closed to the host while no device work runs.
//
// Layout of an allocation: red zone, data, red zone, filled with a pattern that is checked on free
// and when something synchronises. Fresh and freed memory is NaN (0xff).
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include "tarn/cuda/emu/arena.h"

namespace tarn::emu {

std::vector<Arena>& arenas() {
  // Outlives static destructors that free memory.
  static auto& instance = *new std::vector<Arena>(static_cast<std::size_t>(settings().devices));
  return instance;
}

namespace {

std::map<char*, std::size_t>& pinned = *new std::map<char*, std::size_t>;

void open_arena(Arena& arena) {
  if (arena.open++ > 0 || arena.top == 0 || !settings().protect) return;
  mprotect(arena.base, arena.protected_bytes(), PROT_READ | PROT_WRITE);
}

void close_arena(Arena& arena) {
  if (--arena.open > 0 || arena.top == 0 || !settings().protect) return;
  mprotect(arena.base, arena.protected_bytes(), PROT_NONE);
}

struct sigaction previous_action;

// Host code or a kernel touched memory it must not touch. Says what, then lets the previous
// handler (or the default) end the process.
void on_fault(int signal, siginfo_t* info, void* context) {
  const char* address = static_cast<const char*>(info->si_addr);
  char text[1500];
  int length = 0;
  const char* where = running_thread();
  for (std::size_t d = 0; d < arenas().size(); ++d) {
    const Arena& arena = arenas()[d];
    if (arena.base == nullptr || address < arena.base || address >= arena.base + arena.reserved) {
      continue;
    }
    length = std::snprintf(text, sizeof text, "cuda-emu: %s touched memory of device %zu at %p%s\n",
                           *where != '\0' ? where : "host code", d, info->si_addr,
                           *where != '\0' ? ", which is not accessible to it" : "");
  }
  if (length == 0 && *where != '\0') {
    length = std::snprintf(text, sizeof text, "cuda-emu: %s touched invalid address %p\n", where,
                           info->si_addr);
  }
  if (length > 0) (void)!write(STDERR_FILENO, text, static_cast<std::size_t>(length));
  sigaction(signal, &previous_action, nullptr);
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signal, info, context);
  }
}

void reserve(Arena& arena) {
  // Twice the size: holes must not make an allocation fail that the accounting allows.
  arena.reserved = round_up(settings().memory_bytes * 2, kHugePage) + 64 * kHugePage;
  void* memory =
      mmap(nullptr, arena.reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) die("cannot reserve %zu bytes of address space", arena.reserved);
  // With huge pages, closing and opening 256 MB takes 14 us, not 3.6 ms.
  char* aligned =
      reinterpret_cast<char*>(round_up(reinterpret_cast<std::size_t>(memory), kHugePage));
  arena.reserved -= kHugePage;
  madvise(aligned, arena.reserved, MADV_HUGEPAGE);
  if (!settings().protect) mprotect(aligned, arena.reserved, PROT_READ | PROT_WRITE);
  arena.base = aligned;
  static bool watches_faults = false;
  if (!watches_faults) {
    watches_faults = true;
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &previous_action);
  }
}

// First fit in the holes, else at the top. Null if the arena is full.
char* take_range(Arena& arena, std::size_t bytes) {
  for (auto hole = arena.holes.begin(); hole != arena.holes.end(); ++hole) {
    if (hole->second < bytes) continue;
    char* range = hole->first;
    const std::size_t rest = hole->second - bytes;
    arena.holes.erase(hole);
    if (rest > 0) arena.holes[range + bytes] = rest;
    return range;
  }
  if (arena.top + bytes > arena.reserved) return nullptr;
  char* range = arena.base + arena.top;
  arena.top += bytes;
  return range;
}

void give_range(Arena& arena, char* range, std::size_t bytes) {
  auto next = arena.holes.lower_bound(range);
  if (next != arena.holes.end() && range + bytes == next->first) {
    bytes += next->second;
    next = arena.holes.erase(next);
  }
  if (next != arena.holes.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == range) {
      before->second += bytes;
      return;
    }
  }
  arena.holes[range] = bytes;
}

void check_allocation(const char* data, std::size_t bytes, int device) {
  const char* end = data + round_up(bytes, kAlign) + kRedZone;
  if (first_other(data - kRedZone, data, kPattern) != data) {
    die("device %d: memory before an allocation of %zu bytes at %p was written to", device, bytes,
        static_cast<const void*>(data));
  }
  const char* bad = first_other(data + bytes, end, kPattern);
  if (bad != end) {
    die("device %d: byte %td of an allocation of %zu bytes at %p was written to", device,
        bad - data, bytes, static_cast<const void*>(data));
  }
}

}  // namespace

Lock lock_runtime() {
  static std::mutex* mutex = new std::mutex;  // outlives static destructors that free memory
  return Lock(*mutex);
}

// ---- allocations

void* allocate_device(int device, std::size_t bytes) {
  Arena& arena = arenas()[static_cast<std::size_t>(device)];
  if (arena.base == nullptr) reserve(arena);
  const std::size_t padded = round_up(std::max<std::size_t>(bytes, 1), kAlign);
  if (arena.used + padded > settings().memory_bytes) return nullptr;
  char* range = take_range(arena, padded + 2 * kRedZone);
  if (range == nullptr) return nullptr;
  MemoryAccess access(device);
  if (settings().protect) {  // the top may just have grown
    mprotect(arena.base, arena.protected_bytes(), PROT_READ | PROT_WRITE);
  }
  char* data = range + kRedZone;
  ASAN_UNPOISON_MEMORY_REGION(range, padded + 2 * kRedZone);
  std::memset(range, kPattern, kRedZone);
  std::memset(data, kPoison, bytes);
  std::memset(data + bytes, kPattern, padded - bytes + kRedZone);
  ASAN_POISON_MEMORY_REGION(range, kRedZone);
  ASAN_POISON_MEMORY_REGION(data + bytes, padded - bytes + kRedZone);
  arena.used += padded;
  arena.live[data] = bytes;
  return data;
}

bool free_device(void* pointer) {
  const int device = device_of(pointer);
  if (device == kNoDevice) return false;
  Arena& arena = arenas()[static_cast<std::size_t>(device)];
  const auto allocation = arena.live.find(static_cast<char*>(pointer));
  if (allocation == arena.live.end()) return false;
  const auto [data, bytes] = *allocation;
  const std::size_t padded = round_up(std::max<std::size_t>(bytes, 1), kAlign);
  MemoryAccess access(device);
  check_allocation(data, bytes, device);
  arena.blocks.erase(arena.blocks.lower_bound(data), arena.blocks.lower_bound(data + padded));
  ASAN_UNPOISON_MEMORY_REGION(data - kRedZone, padded + 2 * kRedZone);
  std::memset(data, kPoison, padded);
  ASAN_POISON_MEMORY_REGION(data - kRedZone, padded + 2 * kRedZone);
  give_range(arena, data - kRedZone, padded + 2 * kRedZone);
  arena.used -= padded;
  arena.live.erase(allocation);
  return true;
}

std::size_t free_device_bytes(int device) {
  return settings().memory_bytes - arenas()[static_cast<std::size_t>(device)].used;
}

int device_of(const void* pointer) {
  for (std::size_t d = 0; d < arenas().size(); ++d) {
    const auto range = find_range(arenas()[d].live, pointer);
    if (range == arenas()[d].live.end()) continue;
    // The end counts: an empty slice may begin there.
    if (static_cast<const char*>(pointer) <= range->first + range->second) {
      return static_cast<int>(d);
    }
  }
  return kNoDevice;
}

bool is_in_arena(const void* pointer) {
  const char* p = static_cast<const char*>(pointer);
  return std::any_of(arenas().begin(), arenas().end(), [p](const Arena& arena) {
    return arena.base != nullptr && p >= arena.base && p < arena.base + arena.reserved;
  });
}

bool is_device_range(const void* pointer, std::size_t bytes) {
  const int device = device_of(pointer);
  if (device == kNoDevice) return false;
  const auto range = find_range(arenas()[static_cast<std::size_t>(device)].live, pointer);
  return static_cast<const char*>(pointer) + bytes <= range->first + range->second;
}

void require_device_range(const void* pointer, std::size_t bytes, const char* what) {
  if (bytes == 0) return;
  if (!is_device_range(pointer, bytes)) {
    die("%s: %zu bytes at %p are not device memory", what, bytes, pointer);
  }
  Arena& arena = arenas()[static_cast<std::size_t>(device_of(pointer))];
  const auto block = find_range(arena.blocks, pointer);
  if (block == arena.blocks.end()) return;
  const char* begin = static_cast<const char*>(pointer);
  const bool inside = begin < block->first + block->second.block_bytes;
  if (inside && begin + bytes > block->first + block->second.bytes) {
    die("%s: reaches %td bytes past a block of %zu bytes", what,
        begin + bytes - (block->first + block->second.bytes), block->second.bytes);
  }
}

// ---- access

MemoryAccess::MemoryAccess(int device) {
  for (std::size_t d = 0; d < arenas().size(); ++d) {
    const int peer = static_cast<int>(d);
    if (device == kNoDevice || peer == device || can_access(device, peer)) {
      open_arena(arenas()[d]);
      opened_.push_back(peer);
    }
  }
}

MemoryAccess::~MemoryAccess() {
  for (int device : opened_) close_arena(arenas()[static_cast<std::size_t>(device)]);
}

bool is_peer(int device, int peer) {
  const auto& peers = arenas()[static_cast<std::size_t>(device)].peers;
  return static_cast<std::size_t>(peer) < peers.size() && peers[static_cast<std::size_t>(peer)];
}

// Peer access is for copies. A kernel that is given another device's memory is a mistake, which a
// GPU would not find but be slow at.
bool can_access(int device, int peer) {
  return settings().peer_kernels && is_peer(device, peer);
}

bool enable_peer(int device, int peer) {
  if (is_peer(device, peer)) return false;
  auto& peers = arenas()[static_cast<std::size_t>(device)].peers;
  peers.resize(arenas().size());
  peers[static_cast<std::size_t>(peer)] = true;
  return true;
}

// ---- pinned host memory

void* allocate_host(std::size_t bytes) {
  void* memory = std::aligned_alloc(4096, round_up(std::max<std::size_t>(bytes, 1), 4096));
  if (memory != nullptr) pinned[static_cast<char*>(memory)] = bytes;
  return memory;
}

bool free_host(void* pointer) {
  if (pinned.erase(static_cast<char*>(pointer)) == 0) return false;
  std::free(pointer);
  return true;
}

bool is_pinned(const void* pointer) {
  const auto range = find_range(pinned, pointer);
  return range != pinned.end() && static_cast<const char*>(pointer) <= range->first + range->second;
}

void check_red_zones() {
#if !defined(__SANITIZE_ADDRESS__)  // which reports the write itself
  MemoryAccess access;
  for (std::size_t d = 0; d < arenas().size(); ++d) {
    for (const auto& [data, bytes] : arenas()[d].live) {
      check_allocation(data, bytes, static_cast<int>(d));
    }
    check_blocks(arenas()[d]);
  }
#endif
}

void check_memory() {
  Lock lock = lock_runtime();
  check_red_zones();
}

}  // namespace tarn::emu
