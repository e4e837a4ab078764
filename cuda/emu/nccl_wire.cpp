// nccl_wire.cpp - messages over sockets, and sums, for the emulated NCCL.
#if TARN_HAVE_NCCL

#include "tarn/cuda/emu/nccl_wire.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tarn/core/half.h"

namespace tarn::emu {
namespace {

template <class F>
auto visit_type(int type, F f) {
  switch (type) {
    case ncclInt8:
      return f(int8_t{});
    case ncclUint8:
      return f(uint8_t{});
    case ncclInt32:
      return f(int32_t{});
    case ncclUint32:
      return f(uint32_t{});
    case ncclInt64:
      return f(int64_t{});
    case ncclUint64:
      return f(uint64_t{});
    case ncclFloat16:
      return f(half{});
    case ncclFloat64:
      return f(double{});
    case ncclBfloat16:
      return f(bfloat16{});
    default:
      return f(float{});
  }
}

template <class T>
T combine(int op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // wraps
    if (op == ncclSum || op == ncclAvg)
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    if (op == ncclProd) return static_cast<T>(uint64_t{static_cast<U>(a)} * static_cast<U>(b));
    return op == ncclMin ? std::min(a, b) : std::max(a, b);
  } else {
    using A = std::conditional_t<sizeof(T) == 2, float, T>;
    const A x = static_cast<A>(a), y = static_cast<A>(b);
    if (op == ncclSum || op == ncclAvg) return T(x + y);
    if (op == ncclProd) return T(x * y);
    return T(op == ncclMin ? std::fmin(x, y) : std::fmax(x, y));
  }
}

template <class T>
T divide(T sum, std::size_t count) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(sum / static_cast<T>(count));
  } else {
    using A = std::conditional_t<sizeof(T) == 2, float, T>;
    return T(static_cast<A>(sum) / static_cast<A>(count));
  }
}

bool write_all(int socket, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool read_all(int socket, void* data, std::size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::recv(socket, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

std::string NcclMessage::describe() const {
  constexpr const char* kKinds[] = {"AllReduce",     "Reduce", "Broadcast", "AllGather",
                                    "ReduceScatter", "Send",   "Recv"};
  constexpr const char* kTypes[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                    "uint64", "float16", "float32", "float64", "bfloat16"};
  std::string text = kKinds[static_cast<int>(kind)];
  text += " of " + std::to_string(count) + " " + kTypes[type];
  if (reduces()) text += " (op " + std::to_string(op) + ")";
  if (kind == NcclKind::kReduce || kind == NcclKind::kBroadcast) {
    text += " (root " + std::to_string(root) + ")";
  }
  return text;
}

std::size_t nccl_size(int type) {
  if (type < 0 || type > ncclBfloat16) return 0;
  return visit_type(type, []<class T>(T) { return sizeof(T); });
}

NcclData nccl_fold(int type, int op, const std::vector<const NcclData*>& inputs) {
  NcclData result = *inputs[0];
  visit_type(type, [&]<class T>(T) {
    T* out = reinterpret_cast<T*>(result.data());
    const std::size_t count = result.size() / sizeof(T);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      const T* in = reinterpret_cast<const T*>(inputs[r]->data());
      for (std::size_t i = 0; i < count; ++i) out[i] = combine<T>(op, out[i], in[i]);
    }
    for (std::size_t i = 0; op == ncclAvg && i < count; ++i) out[i] = divide(out[i], inputs.size());
  });
  return result;
}

bool nccl_write(int socket, const NcclMessage& message, const void* data) {
  return write_all(socket, &message, sizeof message) && write_all(socket, data, message.bytes);
}

bool nccl_read(int socket, NcclMessage& message, NcclData& data) {
  if (!read_all(socket, &message, sizeof message)) return false;
  data.resize(message.bytes);
  return read_all(socket, data.data(), data.size());
}

int nccl_connect(const std::string& address) {
  const std::size_t colon = address.find(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  if (colon == std::string::npos ||
      ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) != 1) {
    return -1;
  }
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) {
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
  }
  if (fd >= 0) ::close(fd);
  return -1;
}

}  // namespace tarn::emu

#endif  // TARN_HAVE_NCCL
