// tcp_store_server.h - the side of TcpStore that holds the map.
//
// A request is op (1 byte), limit in ms (u32), key and value (each u32 length and bytes); a reply
// is found (1 byte) and a value. Numbers are little-endian. A connection starts with
// store_greeting() both ways, so that whatever else listens on the port is noticed.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "tarn/dist/socket.h"

namespace tarn::dist {

inline constexpr std::string_view kStoreName = "tarn-store-2 ";
/// What both sides begin with: the name, and the start of the job in as many bytes for each.
std::string store_greeting(int start);
inline constexpr uint32_t kMaxStoreBytes = 64u << 20;

enum StoreOp : char { kStoreSet = 'S', kStoreGet = 'G', kStoreAdd = 'A', kStoreErase = 'E' };

/// Serves until destroyed. The map is touched by its thread alone.
class TcpStoreServer {
 public:
  TcpStoreServer(int port, int start);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  int port() const { return port_; }

 private:
  // A client; what it asked for and could not get yet is `waiting`.
  struct Client {
    Socket socket;
    std::string in, out;
    bool greeted = false, dead = false;
    std::optional<std::string> waiting;
    Clock::time_point deadline{};
  };

  void run();
  void accept_all();
  void read(Client& client);
  void write(Client& client);
  bool take_request(Client& client);
  void execute(Client& client, char op, uint32_t limit_ms, std::string key, std::string value);
  void reply(Client& client, bool found, std::string_view value);
  void wake(const std::string& key);
  int poll_all();

  const std::string greeting_;
  Socket listener_;
  int port_;
  int wake_pipe_[2] = {-1, -1};
  std::list<Client> clients_;
  std::map<std::string, std::string> values_;
  std::thread thread_;
};

}  // namespace tarn::dist
